"""The supervisor, the executor, and the parts that a program may put together by hand or replace."""

import importlib
from typing import Any

from kitchener.lazy_names import homes_in

_HOMES = homes_in(__file__)  # imported on first use: these modules import others of this package
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value
