"""Tells OpenTelemetry what turns, model calls, tools, memory and commits do. Without being asked to, nothing of it runs."""

from typing import Any

from kitchener.extras import import_of_extra
from kitchener.lazy_names import homes_in

_HOMES = homes_in(__file__)  # imported on first use, because the library is an extra
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_of_extra(_HOMES[name], "otel"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
