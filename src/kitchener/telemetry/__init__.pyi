from kitchener.telemetry.open_telemetry import OpenTelemetry as OpenTelemetry

__all__ = ["OpenTelemetry"]
