"""Kitchener: an asynchronous, actor-style runtime for LLM agents whose every decision can be explained, audited and replayed.

async with open_runtime() as runtime:
    supervisor = runtime.supervisor("ADMIN")
    result = await supervisor.handle_turn("hello")
    print(result.response)
"""

import ast
import importlib
from pathlib import Path
from typing import Any

# Imported when they are first asked for: all of Kitchener takes long enough for a command's user to press Ctrl-C meanwhile.
_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOMES = {name.name: str(each.module) for each in _STUB.body if isinstance(each, ast.ImportFrom) for name in each.names}
__all__ = sorted(_HOMES, key=lambda name: (not name[0].isupper(), name))


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
