"""Opens the telemetry that the settings or the program ask for. Without either, its library is not imported."""

from collections.abc import Iterator
from contextlib import contextmanager

from kitchener.config import TelemetryConfig
from kitchener.errors import ConfigError
from kitchener.errors.root import CONFIGURATION
from kitchener.logs import FIELDS
from kitchener.telemetry.port import Telemetry


@contextmanager
def chosen_telemetry(config: TelemetryConfig, given: Telemetry | None) -> Iterator[Telemetry | None]:
    """Gives the telemetry for the block, in which log events have the ids of their span; None: nobody asked for it.

    Args:
        config: the settings
        given: telemetry of the program, which takes the place of the configured one

    Raises:
        ConfigError: the settings ask for it, and its library is missing
    """
    telemetry = given if given is not None or not config.traces else _from_settings()
    if telemetry is None:
        yield None
        return
    FIELDS.append(telemetry.log_fields)
    try:
        yield telemetry
    finally:
        FIELDS.remove(telemetry.log_fields)


def _from_settings() -> Telemetry:
    try:
        # Imported here because its library is an extra.
        from kitchener.telemetry.open_telemetry import OpenTelemetry
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        missing = 'needs OpenTelemetry: pip install "kitchener[otel]"'
        raise ConfigError(CONFIGURATION, "telemetry.traces", "true", missing) from error
    return OpenTelemetry()
