"""Describes the tools that one model call offers, and computes their digest for the request's hash."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kitchener.canonical import canonical_digest
from kitchener.records.prompt import ToolSpec


@dataclass(frozen=True, slots=True)
class Toolset:
    """The tools offered in one model call, and the digest of their descriptions."""

    specs: tuple[ToolSpec, ...]
    digest: str


def toolset_of(offered: Iterable[ToolSpec]) -> Toolset:
    """Returns the toolset of tools with these descriptions, in this order."""
    specs = tuple(offered)
    shown = [{"tool_id": spec.tool_id, "description": spec.description, "parameters": dict(spec.parameters)} for spec in specs]
    return Toolset(specs, canonical_digest(shown, at="tools"))


def chosen_digest(digest: str, tool_choice: str | None) -> str:
    """The digest of a toolset with the tool that the model must call, for a request's hash; None: the model chooses."""
    return digest if tool_choice is None else f"{digest} {tool_choice}"


NO_TOOLS: Final = toolset_of(())
"""The toolset without tools."""
