"""Defines the settings of telemetry."""

from kitchener.config.settings import Settings


class TelemetryConfig(Settings):
    """`[telemetry]`: spans and metrics for OpenTelemetry. Where they go, and whether they have content, the program's
    OpenTelemetry and its environment variables say."""

    traces: bool = False
    """Whether turns, model calls, tools, memory operations and commits are told to OpenTelemetry. It needs the extra `otel`;
    without an SDK in the program, nothing is recorded."""
