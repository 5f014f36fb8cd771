"""What a tool is to the parts that describe, allow and run it, wherever its code runs.

A tool is a function of this process, or belongs to a server of another program. Both satisfy `RunnableTool`. Their identity is
on record, so that a person's permission holds for one definition only. This module runs nothing.
Explained in `docs/tools.md`.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Final, NewType, Protocol

from kitchener.canonical import canonical_digest
from kitchener.records.entries.sources import ToolDefinition, ToolTraitsMapping
from kitchener.records.prompt import ToolSpec
from kitchener.records.tools.tool_context import ToolContext
from kitchener.records.tools.tool_question import ToolAnswer, ToolQuestion

ToolSource = NewType("ToolSource", str)
"""Where a tool and its results come from: `tool:<name>` for a function, `mcp:<label>` for a server."""


def function_source(tool_id: str) -> ToolSource:
    """The source of a function of this process."""
    return ToolSource(f"tool:{tool_id}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTraits:
    """What is believed about a tool's effects, and whether its results are trusted.

    A function's author sets them. What a server says of its own tools counts only where its settings say so. Otherwise the
    defaults hold, which expect the worst.
    """

    read_only: bool = False
    """The tool changes nothing."""
    destructive: bool = True
    """A call may destroy something, not only add to it."""
    idempotent: bool = False
    """A repeated call with the same arguments has no further effect."""
    open_world: bool = True
    """The tool reaches beyond a closed set of things, such as to the web."""
    is_trusted: bool = False
    """Its results may be followed as if the user had written them; False: they are data of strangers."""

    def as_mapping(self) -> ToolTraitsMapping:
        return {
            "read_only": self.read_only,
            "destructive": self.destructive,
            "idempotent": self.idempotent,
            "open_world": self.open_world,
            "trusted": self.is_trusted,
        }

    @classmethod
    def of(cls, recorded: ToolTraitsMapping) -> "ToolTraits":
        """The traits that a mapping describes."""
        return cls(
            read_only=recorded["read_only"],
            destructive=recorded["destructive"],
            idempotent=recorded["idempotent"],
            open_world=recorded["open_world"],
            is_trusted=recorded["trusted"],
        )


def function_traits(*, read_only: bool, is_trusted: bool = True) -> ToolTraits:
    """The traits of a function whose author says no more than this."""
    return ToolTraits(read_only=read_only, destructive=not read_only, idempotent=read_only, is_trusted=is_trusted)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolIdentity:
    """The facts of a tool by which permission to call it is given."""

    tool_id: str
    """Its name, as models see it."""
    policy_name: str
    """Its name in rules of approval: `server.tool` for a server's tool, the `tool_id` for a function."""
    source: ToolSource
    traits: ToolTraits
    requires_approval: bool
    """Its author wants each call approved by a person."""
    definition_hash: str
    """Changes with name, description, parameters, source and traits."""

    @classmethod
    def of(cls, definition: ToolDefinition) -> "ToolIdentity":
        """The identity of a tool from its definition, present or on record."""
        tool_id = definition["tool_id"]
        source = ToolSource(definition["source"]) if "source" in definition else function_source(tool_id)
        traits = (
            ToolTraits.of(definition["traits"])
            if "traits" in definition
            else function_traits(read_only=definition["read_only"])
        )
        hashed = {
            "tool_id": tool_id,
            "description": definition["description"],
            "parameters": dict(definition["parameters"]),
            "source": source,
            "traits": traits.as_mapping(),
        }
        return cls(
            tool_id=tool_id,
            policy_name=definition.get("policy_name", tool_id),
            source=source,
            traits=traits,
            requires_approval=definition.get("requires_approval", False),
            definition_hash=canonical_digest(hashed, at="tool"),
        )


class RunnableTool(Protocol):
    """A tool as a registry holds it."""

    @property
    def tool_id(self) -> str:
        """Its name, as models see it."""
        ...

    @property
    def policy_name(self) -> str:
        """Its name in rules of approval."""
        ...

    @property
    def description(self) -> str:
        """What it does, for a model."""
        ...

    @property
    def parameters(self) -> Mapping[str, object]:
        """JSON schema of its arguments."""
        ...

    @property
    def source(self) -> ToolSource:
        """Where it and its results come from."""
        ...

    @property
    def traits(self) -> ToolTraits:
        """What is believed about its effects."""
        ...

    @property
    def requires_approval(self) -> bool:
        """Whether its author wants each call approved by a person."""
        ...

    @property
    def is_read_only(self) -> bool:
        """Whether it may run again, and needs no durable record before it starts."""
        ...

    @property
    def timeout_s(self) -> float | None:
        """Longest run, seconds; None: the registry's limit."""
        ...

    @property
    def acceptance(self) -> tuple[str, ...]:
        """Criteria that the reply must meet if its turn runs this tool."""
        ...

    @property
    def closes_intent(self) -> bool:
        """Whether a successful call closes the intent of its turn."""
        ...

    @property
    def is_async(self) -> bool:
        """Whether its call runs on the event loop, not in a worker thread."""
        ...

    @property
    def spec(self) -> ToolSpec:
        """Its description for a model."""
        ...

    def bind(self, arguments: Mapping[str, object]) -> dict[str, object] | str:
        """Returns the arguments as the tool takes them, or one line of text that says what is wrong with them."""
        ...

    def prepared(self, bound: Mapping[str, object], context: ToolContext) -> Callable[[], object]:
        """Returns the call, ready to run."""
        ...


def definition_of(found: RunnableTool, *, built_in: bool) -> ToolDefinition:
    """A tool as the source of a request. Leaves out each field whose value is the default of a function.

    Args:
        found: the tool
        built_in: whether Kitchener brings it along
    """
    definition: ToolDefinition = {
        "tool_id": found.tool_id,
        "description": found.description,
        "parameters": found.parameters,
        "read_only": found.is_read_only,
        "acceptance": found.acceptance,
        "built_in": built_in,
    }
    if found.closes_intent:
        definition["closes_intent"] = True
    if found.source != function_source(found.tool_id):
        definition["source"] = found.source
    if found.traits != function_traits(read_only=found.is_read_only):
        definition["traits"] = found.traits.as_mapping()
    if found.policy_name != found.tool_id:
        definition["policy_name"] = found.policy_name
    if found.requires_approval:
        definition["requires_approval"] = True
    return definition


_UNCHANGING: Final = frozenset((str, int, float, bool, type(None)))
"""Types of JSON values that nobody can change in place."""


def copied_arguments(arguments: Mapping[str, object]) -> dict[str, object]:
    """A copy for a tool. If the tool had the model's own arguments, its changes to them would be in the next prompt."""
    copied = dict(arguments)
    return copied if _UNCHANGING.issuperset(map(type, copied.values())) else deepcopy(copied)


__all__ = [
    "RunnableTool",
    "ToolAnswer",
    "ToolIdentity",
    "ToolQuestion",
    "ToolSource",
    "ToolTraits",
    "copied_arguments",
    "definition_of",
    "function_source",
    "function_traits",
]
