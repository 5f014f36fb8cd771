"""Telemetry by OpenTelemetry. `docs/telemetry.md` explains how to switch it on, and shows the spans of a turn."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from opentelemetry._logs import LoggerProvider
from opentelemetry.context import attach, detach, get_current
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kitchener.actors.assembly import ComponentKinds
from kitchener.config import LimitsConfig, RouterConfig
from kitchener.gateway import LLMGateway
from kitchener.records.prompt import Provider
from kitchener.telemetry.observed_gateway import ObservedGateway
from kitchener.telemetry.observed_turns import (
    ObservedConsolidator,
    ObservedLedgers,
    ObservedMemory,
    ObservedRunner,
    ObservedTools,
)
from kitchener.telemetry.spans import Tracing


class OpenTelemetry:
    """Spans, metrics and events by the GenAI conventions, for `open_runtime(telemetry=…)`.

    Args:
        tracer_provider, meter_provider, logger_provider: where they go; None: the program's own, as `opentelemetry.trace`,
            `opentelemetry.metrics` and `opentelemetry._logs` know them. Without any, nothing is recorded
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        logger_provider: LoggerProvider | None = None,
    ) -> None:
        self._tracing = tracing = Tracing(tracer_provider, meter_provider, logger_provider)
        self._propagator = TraceContextTextMapPropagator()
        self.kinds: ComponentKinds = ComponentKinds(
            runner=partial(ObservedRunner, tracing),
            turn_memory=partial(ObservedMemory, tracing=tracing),
            consolidator=partial(ObservedConsolidator, tracing),
            tools=partial(ObservedTools, tracing),
            ledgers=partial(ObservedLedgers, tracing),
        )

    def gateway(self, config: RouterConfig, providers: Mapping[str, Provider], limits: LimitsConfig) -> LLMGateway:
        """The gateway, which tells of each attempt."""
        return ObservedGateway(self._tracing, config, providers, limits=limits)

    @contextmanager
    def caller(self, headers: Mapping[str, str]) -> Iterator[None]:
        """Lets what begins in the block belong to the trace of `traceparent`. Baggage is not taken over from a stranger."""
        token = attach(self._propagator.extract(headers, get_current()))
        try:
            yield
        finally:
            detach(token)

    def log_fields(self) -> Mapping[str, str]:
        """`trace_id` and `span_id`."""
        return self._tracing.log_fields()
