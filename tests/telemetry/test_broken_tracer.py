"""What a program installed as its tracer may raise at any call; no turn notices (docs/telemetry.md)."""

from pathlib import Path
from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.trace import NonRecordingSpan, Tracer

from kitchener.telemetry import OpenTelemetry
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import open_scripted
from tests.shared.logs import captured_logs
from tests.telemetry.test_spans import forecaster, weather


class _BrokenSpan(NonRecordingSpan):
    def set_attributes(self, attributes: object) -> None:
        raise RuntimeError("no attributes")

    def end(self, end_time: int | None = None) -> None:
        raise RuntimeError("no end")


class BrokenProvider(TracerProvider):
    """Gives a tracer whose spans cannot be started, or can be used for nothing."""

    def __init__(self, *, starts: bool) -> None:
        super().__init__()
        self._starts = starts

    def get_tracer(self, *given: Any, **named: Any) -> Tracer:
        tracer = super().get_tracer(*given, **named)
        started = tracer.start_span

        def start_span(*args: Any, **options: Any) -> Any:
            if not self._starts:
                raise RuntimeError("no spans today")
            return _BrokenSpan(started(*args, **options).get_span_context())

        tracer.start_span = start_span  # type: ignore[method-assign]
        return tracer


class _BrokenProcessor(SpanProcessor):
    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        raise RuntimeError("no start")

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("no end")


def providers() -> dict[str, TracerProvider]:
    processed = TracerProvider()
    processed.add_span_processor(_BrokenProcessor())
    return {"at start": BrokenProvider(starts=False), "in spans": BrokenProvider(starts=True), "in processors": processed}


@pytest.mark.parametrize("how", ["at start", "in spans", "in processors"])
async def test_a_broken_tracer_harms_no_turn_and_is_logged_once(tmp_path: Path, how: str) -> None:
    telemetry = OpenTelemetry(tracer_provider=providers()[how])
    with captured_logs() as logs:
        async with open_scripted(tmp_path, ScriptedProvider(forecaster), tools=[weather], telemetry=telemetry) as runtime:
            results = [await runtime.supervisor().handle_turn("Graz") for _ in range(2)]
    assert [(each.response, each.degraded) for each in results] == [("Here you are.", False)] * 2
    (line,) = [each for each in logs if "telemetry failed" in each["event"]]
    assert line["log_level"] == "error"
