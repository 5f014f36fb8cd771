"""Tools that the caller of a turn brings along and runs itself: their definitions, the calls that wait for it, and its outputs.

Plain values. A definition becomes a `RunnableTool` by which arguments are checked and which nobody here can run.
Explained in `docs/tools.md`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Final

from kitchener.canonical import digest
from kitchener.records.entries.common import Json
from kitchener.records.entries.sources import ToolDefinition
from kitchener.records.entries.turns import ClientCallMapping
from kitchener.records.events import LAST_UNBOUNDED, POLICY_VERSION
from kitchener.records.tools.runnable_tool import RunnableTool, ToolTraits
from kitchener.records.tools.server_tools import ServerTool
from kitchener.schemas.compiled_schemas import KEPT_SCHEMAS, SchemaBudget, StrangerSchema
from kitchener.schemas.json_schema import JsonSchema, ordered_json
from kitchener.schemas.pattern_limits import pattern_problem

CLIENT_SOURCE: Final = "client:"
"""Begins the source of a client tool, before its name."""

_EXPECTED: Final = "parameters: expected a JSON schema that stands by itself"


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool that the caller of a turn runs. The model is offered it beside the tools of the agent class."""

    name: str
    """1 to 64 letters, digits, `_` or `-`."""
    description: str = ""
    """What it does, for the model."""
    parameters: Mapping[str, object] = field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of its arguments, an object."""


@dataclass(frozen=True, slots=True)
class ClientCall:
    """A call of a client tool that waits for its output; see `answer_client_calls` of a supervisor."""

    call_id: str
    """`{wo_id}.{call}`"""
    name: str
    """The tool that the model called."""
    arguments: Mapping[str, object]
    """As the model gave them. They fit the schema of the tool."""

    def as_mapping(self) -> ClientCallMapping:
        return {"call_id": self.call_id, "name": self.name, "arguments": dict(self.arguments)}


@dataclass(frozen=True, slots=True)
class ClientOutput:
    """What became of a call of a client tool."""

    output: Json = None
    """What the tool returned: text or another JSON value."""
    error: str | None = None
    """How the tool failed, for the model; None: it did not, and `output` counts."""


@dataclass(frozen=True, slots=True)
class ClientToolset:
    """The checked client tools of one turn."""

    tools: tuple[ClientTool, ...]
    text: str
    """The definitions as JSON, with the keys of each schema in their order."""
    hash: str
    """`sha256:` of the text as UTF-8."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tools, in the order given."""
        return tuple([each.name for each in self.tools])

    def runnable(self, *, is_trusted: bool, policy_version: int = POLICY_VERSION) -> tuple[RunnableTool, ...]:
        """The tools as a registry holds them.

        Args:
            is_trusted: whether what the client returns may be followed as if the user had written it
            policy_version: version of the rules that the turn follows. Up to version 8, checks of arguments are not bounded

        Raises:
            ValueError: a schema is invalid; the error's text names the tool
        """
        if policy_version <= LAST_UNBOUNDED:
            return _unbounded(self.text, is_trusted)
        self.compiled()
        return _runnable(self.text, is_trusted)

    def compiled(self, budget: SchemaBudget | None = None) -> tuple[StrangerSchema, ...]:
        """The schemas of the tools. A client sends the same ones again and again, so they are kept.

        Args:
            budget: what the schemas count against; None: nothing

        Raises:
            ValueError: a schema cannot be used; the error's text names the tool
        """
        schemas = [each.parameters for each in self.tools]
        return KEPT_SCHEMAS.of(f"client_tools {self.hash}", schemas, partial(_compiled, self.tools), budget)

    @classmethod
    def of(cls, tools: Sequence[ClientTool]) -> "ClientToolset":
        """The set of these tools, which are not checked."""
        defined = [{"name": each.name, "description": each.description, "parameters": dict(each.parameters)} for each in tools]
        return cls.from_text(ordered_json(defined))

    @classmethod
    def from_text(cls, text: str) -> "ClientToolset":
        """The set with this text, which was checked when it was made.

        Raises:
            ValueError, KeyError, TypeError: the text defines no tools
        """
        tools = [ClientTool(each["name"], each["description"], each["parameters"]) for each in json.loads(text)]
        return cls(tuple(tools), text, digest(text.encode()))


@lru_cache(maxsize=64)
def _runnable(text: str, is_trusted: bool) -> tuple[RunnableTool, ...]:
    """The tools that a text defines. Cached, because a client sends the same text again and again; so are the schemas."""
    tools = ClientToolset.from_text(text)

    def schema_of(number: int) -> JsonSchema:
        return tools.compiled()[number]

    return tuple(
        [
            ServerTool(_definition(each, is_trusted), schema=partial(schema_of, number))
            for number, each in enumerate(tools.tools)
        ]
    )


@lru_cache(maxsize=8)
def _unbounded(text: str, is_trusted: bool) -> tuple[RunnableTool, ...]:
    """The tools that a text defines, without limits on checks, for the replay of a turn that had none."""
    return tuple([ServerTool(_definition(each, is_trusted)) for each in ClientToolset.from_text(text).tools])


def _compiled(tools: Sequence[ClientTool]) -> list[StrangerSchema]:
    """The schemas of tools; raises ValueError if one cannot be used, or if their patterns together cost too much."""
    if (problem := pattern_problem(each.parameters for each in tools)) is not None:
        raise ValueError(f"client_tools: parameters: {problem}")
    found = list[StrangerSchema]()
    for each in tools:
        try:
            found.append(StrangerSchema(each.parameters))
        except ValueError as error:
            raise ValueError(f"client tool {each.name!r}: {_EXPECTED}, found: {error}") from error
    return found


def _definition(tool: ClientTool, is_trusted: bool) -> ToolDefinition:
    return {
        "tool_id": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "read_only": True,  # to take an output again has no effect; what the client does is not known
        "acceptance": (),
        "built_in": False,
        "source": f"{CLIENT_SOURCE}{tool.name}",
        "traits": ToolTraits(is_trusted=is_trusted).as_mapping(),
    }
