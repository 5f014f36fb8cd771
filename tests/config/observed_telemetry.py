"""What a user sees of the setting of `[telemetry]`: whether events of the log name the trace of the program."""

from collections.abc import Hashable
from pathlib import Path

from opentelemetry import trace

from kitchener.config import TelemetryConfig
from kitchener.errors import ProviderError
from kitchener.runtime import open_runtime
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import scripted_config
from tests.shared.logs import captured_logs

CALLER = trace.SpanContext(trace_id=4711, span_id=42, is_remote=True, trace_flags=trace.TraceFlags(1))


async def logged(root: Path, *, traces: bool) -> Hashable:
    """The trace of an event that is logged in a turn inside a span of the program, which has no SDK."""
    settings = scripted_config(root, classify="off", lane={"max_retries": 0})
    settings = settings.model_copy(update={"telemetry": TelemetryConfig(traces=traces)})
    provider = ScriptedProvider(lambda request: ProviderError("scripted", "server_error", "down"))
    with captured_logs() as logs, trace.use_span(trace.NonRecordingSpan(CALLER)):
        async with open_runtime(settings, providers={"scripted": provider}) as runtime:
            await runtime.supervisor().handle_turn("hello")
    (line,) = [each for each in logs if each["event"] == "provider does not answer"]
    return line.get("trace_id"), line.get("span_id")
