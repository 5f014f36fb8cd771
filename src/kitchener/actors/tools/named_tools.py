"""Loads the tools that settings name as `module:attribute`. Explained in `docs/tools.md`."""

import importlib
from collections.abc import Iterable
from typing import Any

from kitchener.actors.tools.tool import Tool
from kitchener.errors import ToolError
from kitchener.plain_names import counted, is_plain_name, origin_of


def load_tools(names: Iterable[str]) -> tuple[Tool[..., object], ...]:
    """Loads tools by names of the form `module:attribute`. It imports modules, so call it at start.

    Raises:
        ToolError: a name has another form, the module or attribute does not exist, or it is neither a tool nor a function
    """
    return tuple(_load(name) for name in names)


def _load(name: str) -> Tool[..., object]:
    module_name, colon, attribute = name.partition(":")
    is_plain = is_plain_name(name)  # another name may be a misplaced secret, which no error may quote
    shown = repr(name) if is_plain else f"of {counted(len(name), 'character')}"
    if not (module_name and colon and attribute):
        raise ToolError(f"tool {shown}: expected module:attribute, such as my_bot.tools:list_packages")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        if not is_plain:
            raise ToolError(f"tool {shown}: its module cannot be imported") from None
        raise ToolError(f"tool {shown}: module {module_name!r} cannot be imported: {error}") from error
    except Exception as error:  # the module's own code
        raise ToolError(f"tool {shown}: its module fails while it is imported: {origin_of(error)}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            absent = f"{module_name!r} has no attribute {attribute!r}" if is_plain else "its module has no such attribute"
            raise ToolError(f"tool {shown}: {absent}")
        found = getattr(found, part)
    if isinstance(found, Tool):
        return found
    if not callable(found):
        raise ToolError(f"tool {shown}: expected a tool or a function, found {type(found).__name__}")
    return Tool(found)
