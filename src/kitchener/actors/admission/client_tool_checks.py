"""Checks the tools that the caller of a turn brings along and runs. `docs/tools.md` explains them."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from kitchener.canonical import canonical_bytes
from kitchener.errors import CallerError, EntryRefused
from kitchener.plain_names import quoted
from kitchener.records.entries.sources import ToolDefinition
from kitchener.records.tools.client_tools import ClientTool, ClientToolset
from kitchener.schemas.compiled_schemas import SchemaBudget

_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ALIKE: Final = str.maketrans("-.", "__")
_MAX_TOOLS: Final = 128
"""Most tools of one message, as OpenAI's API has it."""
_DEFINITION_BYTES: Final = 2_048 * _MAX_TOOLS
"""Most bytes of JSON of all definitions of one message."""


def checked_client_tools(tools: object, known: Sequence[ToolDefinition], budget: SchemaBudget | None = None) -> ClientToolset:
    """Returns the tools of a message as a set.

    Args:
        tools: as the caller gives them; a `ClientToolset` was checked when it was made, and is returned as it is
        known: the tools of the agent class and the built-in ones, whose names are taken
        budget: limits the time for their schemas; None: no limit

    Raises:
        CallerError: a tool is not a `ClientTool`, its name is taken or invalid, or its schema does not describe an object; or
            the tools are too many or too large
    """
    if isinstance(tools, ClientToolset):
        return tools
    if isinstance(tools, str) or not isinstance(tools, Sequence):
        raise CallerError(f"client_tools = {quoted(tools)}: expected a list of ClientTool(…)")
    if len(tools) > _MAX_TOOLS:
        raise CallerError(f"client_tools has {len(tools)} members: expected at most {_MAX_TOOLS}")
    taken, checked = {_alike(each["tool_id"]): _owned(each) for each in known}, list[ClientTool]()
    for number, each in enumerate(tools, 1):
        if not isinstance(each, ClientTool):
            raise CallerError(f"client tool {number} = {quoted(each)}: expected ClientTool(name, description, parameters)")
        if not isinstance(each.name, str) or not _TOOL_NAME.fullmatch(each.name):
            raise CallerError(f"client tool {number}: name = {quoted(each.name)}: expected 1 to 64 letters, digits, '_' or '-'")
        if (other := taken.get(_alike(each.name))) is not None:
            raise CallerError(f"client tool {each.name!r} has the name of {other}: expected another name")
        taken[_alike(each.name)] = f"client tool {each.name!r} of the same message"
        checked.append(_with_type(each))
    return _compiled(checked, _DEFINITION_BYTES, budget)


def _owned(tool: ToolDefinition) -> str:
    return f"the built-in tool {tool['tool_id']!r}" if tool["built_in"] else f"tool {tool['tool_id']!r} of the agent class"


def _alike(name: str) -> str:
    """The form in which names are compared: a model confuses names that differ only in case or in separators."""
    return name.casefold().translate(_ALIKE)


def _with_type(tool: ClientTool) -> ClientTool:
    """The tool with `type: object` in its schema, where the schema leaves the type out.

    Raises:
        CallerError: its description is not text, or its schema does not describe an object
    """
    if not isinstance(tool.description, str):
        raise CallerError(f"client tool {tool.name!r}: description = {quoted(tool.description)}: expected text")
    schema = tool.parameters
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise CallerError(f"client tool {tool.name!r}: parameters = {quoted(schema)}: expected a JSON schema of an object")
    try:
        canonical_bytes([tool.description, schema], at="definition")  # checks that it is JSON, and not too deep
    except EntryRefused as error:
        raise CallerError(f"client tool {tool.name!r}: {error}") from None
    return tool if "type" in schema else ClientTool(tool.name, tool.description, {"type": "object", **schema})


def _compiled(tools: Sequence[ClientTool], max_bytes: int, budget: SchemaBudget | None) -> ClientToolset:
    """The set of these tools. Raises CallerError if a schema cannot be used, or if the tools are too large."""
    found = ClientToolset.of(tools)
    if (size := len(found.text.encode())) > max_bytes:  # before they are compiled, which takes seconds for megabytes
        raise CallerError(f"client_tools has {size:,} bytes as JSON: expected at most {max_bytes:,}")
    try:
        found.compiled(budget)
    except ValueError as error:
        raise CallerError(str(error)) from None
    return found
