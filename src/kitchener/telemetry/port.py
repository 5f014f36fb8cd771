"""Defines what a runtime asks of telemetry, and opens the one that the settings or the program name.

Without either, OpenTelemetry is not imported.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from kitchener.actors.assembly import ComponentKinds
from kitchener.config import LimitsConfig, RouterConfig, TelemetryConfig
from kitchener.errors import ConfigError
from kitchener.errors.root import CONFIGURATION
from kitchener.extras import needs
from kitchener.gateway import LLMGateway
from kitchener.logs import FIELDS
from kitchener.records.prompt import Provider


class Telemetry(Protocol):
    """Makes the parts of a runtime that also tell what they do. A failure of the telemetry itself never reaches a turn."""

    @property
    def kinds(self) -> ComponentKinds:
        """The classes of an agent class's components."""
        ...

    def gateway(self, config: RouterConfig, providers: Mapping[str, Provider], limits: LimitsConfig) -> LLMGateway:
        """The gateway, not yet open."""
        ...

    def caller(self, headers: Mapping[str, str]) -> AbstractContextManager[None]:
        """Lets what begins in the block belong to the trace that a request's headers name, by lower-case names."""
        ...

    def log_fields(self) -> Mapping[str, str]:
        """The ids of the current span, for a log event; empty: there is none."""
        ...


@contextmanager
def chosen_telemetry(config: TelemetryConfig, given: Telemetry | None) -> Iterator[Telemetry | None]:
    """Gives the telemetry for the block, in which log events have the ids of their span; None: it is off.

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
        raise ConfigError(CONFIGURATION, "telemetry.traces", "true", needs("otel")) from error
    return OpenTelemetry()
