"""Serves the agents of a runtime over HTTP: to clients of the OpenAI API, and by an API of its own."""

from typing import Any

from kitchener.extras import import_of_extra
from kitchener.lazy_names import homes_in

_HOMES = homes_in(__file__)  # imported on first use, because the server's packages are an extra
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_of_extra(_HOMES[name], "serve"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
