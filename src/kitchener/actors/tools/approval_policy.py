"""Decides which tools run unasked, which wait for a person, and which are not offered. Pure.

The rules are settings; `ToolIdentity` describes a tool. `actors/turn/services.py` asks once for all tools of a class.
Explained in `docs/approval.md`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from kitchener.config import ApprovalConfig, ApprovalRule, Decision
from kitchener.config.approval import condition_terms
from kitchener.records.tools.runnable_tool import ToolIdentity

OF_THE_TOOL: Final = "tool"
"""The recorded rule if the tool itself asks."""
OF_THE_CLIENT: Final = "client"
"""The recorded rule if the call waits for the client that runs the tool."""
AFTER_UNTRUSTED: Final = "after_untrusted"
"""The recorded rule if a call waits because its turn has read text of an untrusted source."""


class Ruling(NamedTuple):
    """The decision about a tool, and the rule behind it."""

    decision: Decision
    rule: str
    """The rule as written in the settings."""


@dataclass(frozen=True, slots=True)
class ApprovalPolicy:
    """Decides about the tools of one agent class."""

    offered: tuple[str, ...] = ()
    """The tools that a model may be offered."""
    asks: Mapping[str, str] = field(default_factory=dict)
    """The tools whose calls wait for a person, each with its rule."""
    effects: tuple[str, ...] = ()
    """The offered tools that are not read-only, to which `after_untrusted` applies."""
    after_untrusted: Decision = "allow"
    """The decision about `effects` once a turn has read text of an untrusted source."""
    untrusted: Mapping[str, str] = field(default_factory=dict)
    """The tools whose results are not trusted, each with its source."""
    hashes: Mapping[str, str] = field(default_factory=dict)
    """The hashes of the tools' definitions."""
    asking: frozenset[str] = frozenset()
    """The ids of `asks`."""

    def held_back(self, *, shows_untrusted: bool) -> frozenset[str]:
        """The tools that do not run before the reply, because a person may have to be asked about them."""
        is_later = shows_untrusted and self.after_untrusted != "allow"
        return self.asking.union(self.effects) if is_later else self.asking

    @property
    def asks_later(self) -> tuple[str, ...]:
        """The tools that wait for a person only after text of an untrusted source."""
        return tuple(each for each in self.effects if each not in self.asks) if self.after_untrusted == "ask" else ()

    @property
    def refused_later(self) -> tuple[str, ...]:
        """The tools that are refused after text of an untrusted source."""
        return self.effects if self.after_untrusted == "deny" else ()


def policy_of(config: ApprovalConfig, tools: Iterable[ToolIdentity]) -> ApprovalPolicy:
    """Judges all tools of an agent class."""
    offered, asks, effects = list[str](), dict[str, str](), list[str]()
    untrusted, hashes = dict[str, str](), dict[str, str]()
    for each in tools:
        decision, rule = ruling_on(config, each)
        hashes[each.tool_id] = each.definition_hash
        if decision == "deny":
            continue
        offered.append(each.tool_id)
        if decision == "ask":
            asks[each.tool_id] = rule
        if not each.traits.read_only:
            effects.append(each.tool_id)
        if not each.traits.is_trusted:
            untrusted[each.tool_id] = each.source
    after = config.after_untrusted
    return ApprovalPolicy(tuple(offered), asks, tuple(effects), after, untrusted, hashes, frozenset(asks))


def ruling_on(config: ApprovalConfig, tool: ToolIdentity) -> Ruling:
    """Judges one tool: by the first rule that matches, else by its author's wish, else by the default for its kind."""
    for rule in config.rules:
        if _fits(rule, tool):
            return Ruling(rule.decision, f"{rule.tool} when {rule.when}" if rule.when else rule.tool)
    if tool.requires_approval:
        return Ruling("ask", OF_THE_TOOL)
    if not tool.source.startswith("mcp:"):
        return Ruling(config.default, "default")
    return Ruling("allow" if tool.traits.read_only else config.mcp_default, "mcp_default")


def _fits(rule: ApprovalRule, tool: ToolIdentity) -> bool:
    if not (fnmatchcase(tool.policy_name, rule.tool) or fnmatchcase(tool.tool_id, rule.tool)):
        return False
    traits: Mapping[str, object] = {**tool.traits.as_mapping()}
    return all(traits.get(trait) is wanted for trait, wanted in condition_terms(rule.when).items())
