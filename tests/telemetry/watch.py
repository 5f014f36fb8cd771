"""OpenTelemetry's own SDK without an exporter: what spans, metrics and events a runtime has made."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kitchener.telemetry import OpenTelemetry, names

COMMITS = (names.COMMIT,)
Tree = dict[str, Any]
"""A span's name, and under it those of its children; a number follows where siblings have one name."""


class Watch:
    """What was told, and the telemetry that tells it."""

    def __init__(self) -> None:
        self._spans, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self._events = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]  # the library leaves out its return type
        self.tracers, self.meters, self.loggers = TracerProvider(), MeterProvider([self._reader]), LoggerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.loggers.add_log_record_processor(SimpleLogRecordProcessor(self._events))
        self.telemetry = OpenTelemetry(tracer_provider=self.tracers, meter_provider=self.meters, logger_provider=self.loggers)

    @contextmanager
    def span(self, name: str) -> Iterator[int]:
        """A span of the program, in which it takes turns. Gives its trace."""
        with self.tracers.get_tracer("program").start_as_current_span(name) as span:
            yield span.get_span_context().trace_id

    @property
    def spans(self) -> list[ReadableSpan]:
        """The spans that have ended, in the order in which they began."""
        return sorted(self._spans.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, start: str) -> list[ReadableSpan]:
        """The spans whose name begins so."""
        return [each for each in self.spans if each.name.startswith(start)]

    def one(self, start: str) -> ReadableSpan:
        """The only such span."""
        (found,) = self.named(start)
        return found

    def inside(self, outer: ReadableSpan, *, without: Iterable[str] = COMMITS) -> Tree:
        """The tree of spans in a span."""
        tree: Tree = {}
        for each in self.spans:
            if each.parent is not None and each.parent.span_id == context_of(outer).span_id and each.name not in without:
                name, number = each.name, 2
                while name in tree:
                    name, number = f"{each.name} {number}", number + 1
                tree[name] = self.inside(each, without=without)
        return tree

    @property
    def events(self) -> list[tuple[str | None, dict[str, Any]]]:
        """The events with their attributes."""
        return [
            (each.log_record.event_name, dict(each.log_record.attributes or {})) for each in self._events.get_finished_logs()
        ]

    def metrics(self) -> dict[str, list[Any]]:
        """The data points by the name of the metric."""
        found: dict[str, list[Any]] = {}
        data = self._reader.get_metrics_data()
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    found.setdefault(metric.name, []).extend(metric.data.data_points)
        return found

    def words(self) -> str:
        """Everything that was told, as one text."""
        spans = [each.to_json() for each in self._spans.get_finished_spans()]
        return "\n".join([*spans, repr(self.events), repr(self.metrics())])


def context_of(span: ReadableSpan) -> trace.SpanContext:
    """The ids of a span."""
    found: trace.SpanContext | None = span.context
    assert found is not None
    return found


def facts(span: ReadableSpan) -> dict[str, Any]:
    """The attributes of a span."""
    return dict(span.attributes or {})


def end_of(span: ReadableSpan) -> tuple[str, Any]:
    """The status of a span, and the kind of its error."""
    assert span.status.description in (None, facts(span).get(names.ERROR_TYPE))
    return span.status.status_code.name, facts(span).get(names.ERROR_TYPE)
