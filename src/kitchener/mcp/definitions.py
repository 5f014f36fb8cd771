"""Turns the tools that a server lists into definitions for models, and leaves out those that cannot be offered.

Names, descriptions and schemas are a stranger's text, so each has limits. Pure: it knows no connection. `server.py` puts the
definitions in place. Explained in `docs/mcp.md`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Final

from kitchener.canonical import canonical_bytes
from kitchener.config.mcp_servers import McpServerConfig
from kitchener.errors import EntryRefused
from kitchener.plain_names import quoted
from kitchener.records.entries.sources import ToolDefinition
from kitchener.records.tools.runnable_tool import ToolSource, ToolTraits
from kitchener.schemas.json_schema import JsonSchema

_MAX_NAME: Final = 64
"""Longest name of a tool that providers of models take, characters."""
_MAX_OWN_NAME: Final = 128
"""Longest name of a tool at its server, characters: the most that the protocol recommends."""
_HASH_CHARS: Final = 8
_NOT_IN_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_MAX_DEPTH: Final = 32
"""Deepest nesting of a schema. Checking arguments recurses into it."""
_MAX_SCHEMAS: Final = 2_000
"""Most values in a schema. A model reads all of them with each request."""
_MAX_REFERENCES: Final = 64
"""Most references in a schema. Those that refer to each other can stand for a schema of exponential size."""


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool of a server that can be offered."""

    name: str
    """Its name at the server."""
    definition: ToolDefinition


@dataclass(frozen=True, slots=True)
class RefusedTool:
    """A tool of a server that cannot be offered."""

    name: str
    """Its name at the server, quoted."""
    reason: str


def source_of(label: str) -> ToolSource:
    """The source of a server's tools and results."""
    return ToolSource(f"mcp:{label}")


def read_tools(
    label: str, settings: McpServerConfig, listed: Iterable[Mapping[str, object]]
) -> tuple[list[ListedTool], list[RefusedTool]]:
    """Returns the tools that can be offered, in the order of the list, and the others with the reason.

    Tools that `allow` leaves out are in neither.

    Args:
        label: our name of the server
        settings: its settings
        listed: its tools, as JSON objects of the protocol
    """
    found: dict[str, ListedTool] = {}
    refused: list[RefusedTool] = []
    for number, tool in enumerate(listed):
        given = tool.get("name")
        name = given if isinstance(given, str) else ""
        if not any(fnmatchcase(name, pattern) for pattern in settings.allow):
            continue
        if len(found) >= settings.max_tools:
            problem = f"the server lists more than max_tools = {settings.max_tools} tools; this is number {number + 1}"
            refused.append(RefusedTool(quoted(name), problem))
            continue
        tool_id = _tool_id(label, name)
        definition = _definition(label, tool_id, settings, tool)
        problem_found = _name_problem(name, tool_id, found) or _problem(definition, settings.max_definition_bytes)
        if problem_found is not None:
            refused.append(RefusedTool(quoted(name), problem_found))
        else:
            found[tool_id] = ListedTool(name, definition)
    return list(found.values()), refused


def _tool_id(label: str, name: str) -> str:
    """The name for models. One that is too long or has other characters ends with a hash of the server's name for it."""
    plain = _NOT_IN_NAME.sub("_", name)
    whole = f"{label}__{plain}"
    if plain == name and len(whole) <= _MAX_NAME:
        return whole
    mark = sha256(name.encode("utf-8", "backslashreplace")).hexdigest()[:_HASH_CHARS]
    return f"{whole[: _MAX_NAME - _HASH_CHARS - 1]}_{mark}"


def _name_problem(name: str, tool_id: str, found: Mapping[str, ListedTool]) -> str | None:
    if not 0 < len(name) <= _MAX_OWN_NAME or not name.isprintable():
        return f"its name is not a text of 1 to {_MAX_OWN_NAME} characters that can be seen"
    if tool_id in found:
        return f"another tool of the server has this name already, as {tool_id!r}"
    return None


def _definition(label: str, tool_id: str, settings: McpServerConfig, tool: Mapping[str, object]) -> ToolDefinition:
    hints = tool.get("annotations")
    traits = _traits(settings, hints if isinstance(hints, Mapping) else {})
    schema = tool.get("inputSchema")
    return {
        "tool_id": tool_id,
        "description": str(tool.get("description") or tool.get("title") or ""),
        "parameters": schema if isinstance(schema, Mapping) else {},
        "read_only": traits.read_only,
        "acceptance": (),
        "built_in": False,
        "source": source_of(label),
        "traits": traits.as_mapping(),
        "policy_name": f"{label}.{tool.get('name', '')}",
    }


def _traits(settings: McpServerConfig, hints: Mapping[str, object]) -> ToolTraits:
    """What the server says, where its settings believe it; else the defaults, which expect the worst."""
    if not settings.trust_annotations:
        return ToolTraits(is_trusted=settings.trusted)
    read_only = hints.get("readOnlyHint") is True
    return ToolTraits(
        read_only=read_only,
        destructive=not read_only and hints.get("destructiveHint") is not False,
        idempotent=read_only or hints.get("idempotentHint") is True,
        open_world=hints.get("openWorldHint") is not False,
        is_trusted=settings.trusted,
    )


def _problem(definition: ToolDefinition, max_bytes: int) -> str | None:
    """Returns why a tool cannot be offered, or None."""
    parameters = definition["parameters"]
    if (problem := extent_problem(parameters)) is not None:
        return problem
    try:
        size = len(canonical_bytes({"description": definition["description"], "parameters": parameters}, at="tool"))
    except EntryRefused as error:
        return f"its definition cannot be recorded: {error}"
    if size > max_bytes:
        return f"its description and schema have {size:,} bytes, and max_definition_bytes = {max_bytes:,}"
    if parameters.get("type") != "object":
        return 'its schema is not one of an object: "type": "object" is missing'
    try:
        JsonSchema(parameters)
    except (ValueError, RecursionError) as error:
        return f"its schema is invalid: {error}"
    return None


def extent_problem(schema: Mapping[str, object]) -> str | None:
    """Returns why a schema is too deep, too large or too entangled, or refers to something outside itself, or None.

    Looks at each value once, without recursion.
    """
    level: list[object] = [schema]
    values = references = 0
    for _ in range(_MAX_DEPTH):
        below: list[object] = []
        for each in level:
            values += 1
            if isinstance(each, Mapping):
                references += sum(isinstance(each.get(key), str) for key in ("$ref", "$dynamicRef", "$recursiveRef"))
                below.extend(each.values())
            elif isinstance(each, list):
                below.extend(each)
            if values + len(below) > _MAX_SCHEMAS:
                return f"its schema has more than {_MAX_SCHEMAS:,} values"
        if references > _MAX_REFERENCES:
            return f"its schema has more than {_MAX_REFERENCES} references"
        if not below:
            return None if not references or not _leaves(schema) else "its schema refers to something outside itself"
        level = below
    return f"its schema nests deeper than {_MAX_DEPTH} levels"


def _leaves(schema: Mapping[str, object]) -> bool:
    """Whether a reference names anything but a part of the schema."""
    open_parts: list[object] = [schema]
    while open_parts:
        part = open_parts.pop()
        if isinstance(part, Mapping):
            if any(isinstance(found := part.get(key), str) and not found.startswith("#") for key in ("$ref", "$dynamicRef")):
                return True
            open_parts.extend(part.values())
        elif isinstance(part, list):
            open_parts.extend(part)
    return False


__all__ = ["ListedTool", "RefusedTool", "extent_problem", "read_tools", "source_of"]
