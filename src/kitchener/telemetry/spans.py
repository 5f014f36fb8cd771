"""Makes a span of each operation, in the right place of the caller's trace, and never lets a broken tracer harm the operation.

The engine's work runs in tasks that were started elsewhere. The parent of an operation is therefore what was current for the
task that asked, which the mailboxes carry with the message (`lanes/askers.py`); nothing of it is on record. Inside an operation
its span is current: for the code that runs there, and for what that code asks of other actors, also for a tool that takes a
turn of its own.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context, Token
from time import perf_counter
from types import TracebackType
from typing import Self

import anyio
from opentelemetry import trace
from opentelemetry._logs import LoggerProvider, LogRecord, get_logger_provider
from opentelemetry.context import Context as TraceContext
from opentelemetry.context import attach, detach, get_current
from opentelemetry.metrics import Histogram, Meter, MeterProvider, get_meter_provider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AnyValue

from kitchener.errors import ProviderError
from kitchener.lanes.askers import ASKERS_CONTEXT, first_askers_context
from kitchener.logs import get_logger
from kitchener.plain_names import origin_of
from kitchener.telemetry import names
from kitchener.telemetry.captured_content import CapturedContent

_log = get_logger(__name__)

AttributeValue = str | bool | int | float | list[str]
_SCOPE = "kitchener"
_PROPAGATOR = TraceContextTextMapPropagator()


class Tracing:
    """Begins operations. A runtime has one.

    Args:
        tracer_provider, meter_provider, logger_provider: where spans, metrics and events go; None: the program's own, as
            OpenTelemetry knows them
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        logger_provider: LoggerProvider | None = None,
    ) -> None:
        self.tracer = (tracer_provider or trace.get_tracer_provider()).get_tracer(_SCOPE)
        self.instruments = Instruments((meter_provider or get_meter_provider()).get_meter(_SCOPE))
        self.events = (logger_provider or get_logger_provider()).get_logger(_SCOPE)
        self.content = CapturedContent.read(os.environ)
        self._has_failed = False

    def failed(self, error: Exception) -> None:
        """Logs the first failure of a tracer, a meter or an exporter. The operation continues."""
        if not self._has_failed:
            self._has_failed = True
            _log.error("telemetry failed, and turns continue without it", error=origin_of(error))

    def log_fields(self) -> Mapping[str, str]:
        """The ids of the current span, for a log event; empty: there is none."""
        try:
            here = trace.get_current_span(present()).get_span_context()
            if here.is_valid:
                return {"trace_id": trace.format_trace_id(here.trace_id), "span_id": trace.format_span_id(here.span_id)}
        except Exception as error:  # noqa: BLE001  what a program installed as its tracer may raise anything
            self.failed(error)
        return {}


class OpenSpan:
    """One operation under way. In its block its span is current; at the end the span has how it ended. Never raises.

    Args:
        tracing: where the span goes
        name: the span's name
        kind: whether the work is done here (`INTERNAL`) or asked of another program (`CLIENT`)
        attributes: what is known at the start
        duration: where the duration is recorded; None: nowhere
        labels: the attributes of the metric, of few values each
    """

    __slots__ = (
        "_asker",
        "_attributes",
        "_began",
        "_duration",
        "_error",
        "_kind",
        "_labels",
        "_name",
        "_own",
        "_span",
        "tracing",
    )

    def __init__(
        self,
        tracing: Tracing,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, AttributeValue],
        duration: Histogram | None = None,
        labels: Mapping[str, AttributeValue] | None = None,
    ) -> None:
        self.tracing, self._name, self._kind, self._attributes = tracing, name, kind, attributes
        self._duration, self._labels = duration, dict(labels or {})
        self._span: Span | None = None
        self._own: Token[TraceContext] | None = None
        self._asker: Token[Context | None] | None = None
        self._error: str | None = None
        self._began = perf_counter()

    def __enter__(self) -> Self:
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001  what a program installed as its tracer may raise anything
            self.tracing.failed(error)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> None:
        if error is not None:
            self._error = error_kind(error)
        try:
            self._end()
        except Exception as broken:  # noqa: BLE001  as above
            self.tracing.failed(broken)

    def note(self, attributes: Mapping[str, AttributeValue] | Callable[[], Mapping[str, AttributeValue]]) -> None:
        """Adds attributes, or what a function makes of them: it may raise, as where a text has no form of JSON."""
        try:
            if self._span is not None:
                self._span.set_attributes(attributes() if callable(attributes) else attributes)
        except Exception as error:  # noqa: BLE001  as above
            self.tracing.failed(error)

    def label(self, key: str, value: AttributeValue) -> None:
        """Adds an attribute of the metrics, of few values."""
        self._labels[key] = value

    def measure(self, histogram: Histogram, value: float, labels: Mapping[str, AttributeValue] | None = None) -> None:
        """Records a value with the labels of the operation, and with further ones."""
        try:
            histogram.record(value, {**self._labels, **(labels or {})})
        except Exception as error:  # noqa: BLE001  as above
            self.tracing.failed(error)

    def tell(self, event: str, attributes: Callable[[], Mapping[str, AnyValue]]) -> None:
        """Writes an event beside the span."""
        try:
            self.tracing.events.emit(LogRecord(event_name=event, attributes=attributes(), context=get_current()))
        except Exception as error:  # noqa: BLE001  as above
            self.tracing.failed(error)

    def headers(self) -> dict[str, str]:
        """The headers by which another program lets its spans belong to this one; empty: there is no trace."""
        found = dict[str, str]()
        try:
            if self._span is not None:
                _PROPAGATOR.inject(found, trace.set_span_in_context(self._span))
        except Exception as error:  # noqa: BLE001  as above
            self.tracing.failed(error)
        return found

    def fail(self, kind: str) -> None:
        """Says that the operation failed, by a word and never by a text: a text may quote what was said."""
        self._error = kind

    def elapsed_s(self) -> float:
        """Seconds since the operation began."""
        return perf_counter() - self._began

    def _begin(self) -> None:
        parent, asker = present(), first_askers_context()
        self._span = self.tracing.tracer.start_span(self._name, parent, self._kind, self._attributes)
        inside = trace.set_span_in_context(self._span, parent)
        self._own = attach(inside)
        if asker is not None:  # what this task asks of others, and tools, begin with the asker's context
            changed = asker.copy()
            changed.run(attach, inside)
            self._asker = ASKERS_CONTEXT.set(changed)

    def _end(self) -> None:
        if self._asker is not None:
            ASKERS_CONTEXT.reset(self._asker)
        if self._error is not None:
            self.label(names.ERROR_TYPE, self._error)
        if self._duration is not None:
            self.measure(self._duration, self.elapsed_s())  # with the span still current, for exemplars
        if self._own is not None:
            detach(self._own)
        if self._span is not None:
            if self._error is not None:
                self._span.set_attribute(names.ERROR_TYPE, self._error)
                self._span.set_status(Status(StatusCode.ERROR, self._error))
            self._span.end()


def present() -> TraceContext:
    """What is current for the task on whose behalf this code runs."""
    asker = first_askers_context()
    return get_current() if asker is None else asker.copy().run(get_current)


def error_kind(error: BaseException) -> str:
    """One word for an error, without its text: `cancelled`, the reason of a failed model call, or the name of its class."""
    if isinstance(error, anyio.get_cancelled_exc_class() | GeneratorExit):
        return "cancelled"
    return error.reason if isinstance(error, ProviderError) else type(error).__qualname__


class Instruments:
    """The histograms of the GenAI conventions, in which operations are recorded. Without a meter provider they do nothing.

    Args:
        meter: makes them
    """

    __slots__ = ("agent", "call", "first_chunk", "tokens", "tool")

    def __init__(self, meter: Meter) -> None:
        def seconds(name: str, description: str, bounds: Sequence[float]) -> Histogram:
            return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=bounds)

        self.call = seconds(names.OPERATION_DURATION, "Duration of one attempt of a model call.", names.CALL_SECONDS)
        self.first_chunk = seconds(names.FIRST_CHUNK_DURATION, "Time to the first text of a stream.", names.CALL_SECONDS)
        self.agent = seconds(names.AGENT_DURATION, "Duration of a turn.", names.AGENT_SECONDS)
        self.tool = seconds(names.TOOL_DURATION, "Duration of a tool call.", names.CALL_SECONDS)
        self.tokens = meter.create_histogram(
            names.TOKEN_USAGE,
            "{token}",
            "Tokens of one attempt of a model call.",
            explicit_bucket_boundaries_advisory=names.TOKENS,
        )
