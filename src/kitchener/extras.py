"""Says which extra a user has to install, where the libraries of one are missing."""

import importlib
import importlib.util
from types import ModuleType
from typing import Final

_SERVE: Final = ("httptools", "jwt", "starlette", "uvicorn")
"""What `kitchener.serve` imports. Other packages bring some of these, so each of them may be the one that is missing."""

_MODELS: Final = ("httpx", "httpx2", "pydantic_ai")
"""What providers of kind `model` import, besides the packages of their vendors."""


def needs(extra: str) -> str:
    """Returns the part of an error message that names a missing extra and how to install it."""
    return f"needs the extra `{extra}`: pip install 'kitchener[{extra}]'"


def can_serve() -> bool:
    """Tells whether all libraries of the extra `serve` are installed, without importing them."""
    return all(importlib.util.find_spec(each) is not None for each in _SERVE)


def can_call_vendors() -> bool:
    """Tells whether the libraries of the extra `models` are installed, without importing them."""
    return all(importlib.util.find_spec(each) is not None for each in _MODELS)


def import_of_extra(module: str, extra: str) -> ModuleType:
    """Imports one of our modules whose libraries come with an extra.

    Raises:
        ModuleNotFoundError: a library is missing; the text names the extra
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{module} {needs(extra)} ({error})", name=error.name, path=error.path) from error
