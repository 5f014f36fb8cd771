"""What a runtime asks of telemetry, so that it needs no library of it."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from kitchener.actors.assembly import ComponentKinds
from kitchener.config import LimitsConfig, RouterConfig
from kitchener.gateway import LLMGateway
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
