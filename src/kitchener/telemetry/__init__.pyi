from kitchener.telemetry.observing import OpenTelemetry as OpenTelemetry
