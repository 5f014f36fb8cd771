"""Which rule decides about a tool, and what a condition may say (docs/approval.md)."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.actors.tools.approval_policy import policy_of, ruling_on
from kitchener.config import ApprovalConfig, ApprovalRule
from kitchener.config.approval import condition_terms
from kitchener.errors import ConfigError
from kitchener.records.tools.runnable_tool import ToolIdentity, ToolSource, ToolTraits, function_traits

TRAITS = ("read_only", "destructive", "idempotent", "open_world", "trusted")


def function(name: str = "write", *, read_only: bool = False, asks: bool = False) -> ToolIdentity:
    """A function of the program."""
    return ToolIdentity(
        tool_id=name,
        policy_name=name,
        source=ToolSource(f"tool:{name}"),
        traits=function_traits(read_only=read_only),
        requires_approval=asks,
        definition_hash="h",
    )


def served(name: str = "fs.write", **traits: bool) -> ToolIdentity:
    """A tool of a server."""
    label, _, own = name.partition(".")
    return ToolIdentity(
        tool_id=f"{label}__{own}",
        policy_name=name,
        source=ToolSource(f"mcp:{label}"),
        traits=ToolTraits(**traits),
        requires_approval=False,
        definition_hash="h",
    )


def rules(*found: tuple[str, str, str]) -> Any:
    """Rules in order: tool, condition and decision."""
    return {"rules": [{"tool": tool, "when": when, "decision": decision} for tool, when, decision in found]}


@pytest.mark.parametrize(
    ("config", "tool", "expected"),
    [
        ({}, function(), ("allow", "default")),
        ({}, function(asks=True), ("ask", "tool")),
        ({"default": "deny"}, function(asks=True), ("ask", "tool")),
        ({"default": "ask"}, function(read_only=True), ("ask", "default")),
        (rules(("write", "", "allow")), function(asks=True), ("allow", "write")),
        (rules(("look", "", "allow")), function(asks=True), ("ask", "tool")),
        ({}, served(), ("ask", "mcp_default")),
        ({}, served(read_only=True), ("allow", "mcp_default")),
        ({"default": "deny", "mcp_default": "allow"}, served(), ("allow", "mcp_default")),
        ({"mcp_default": "deny"}, served(read_only=True), ("allow", "mcp_default")),
        (rules(("fs.*", "", "deny")), served(read_only=True), ("deny", "fs.*")),
        (rules(("fs__w?ite", "", "deny")), served(), ("deny", "fs__w?ite")),
        (rules(("FS.*", "", "deny")), served(), ("ask", "mcp_default")),
        (rules(("*", "not read_only", "deny"), ("*", "", "allow")), served(), ("deny", "* when not read_only")),
        (rules(("*", "not read_only", "deny"), ("*", "", "allow")), served(read_only=True), ("allow", "*")),
    ],
)
def test_the_first_rule_that_fits_decides_then_the_author_then_the_default(
    config: dict[str, Any], tool: ToolIdentity, expected: tuple[str, str]
) -> None:
    assert tuple(ruling_on(ApprovalConfig(**config), tool)) == expected


@given(st.lists(st.sampled_from(["", "read_only", "not destructive", "open_world and not trusted"]), max_size=4), st.data())
def test_a_rule_that_no_tool_meets_changes_nothing(conditions: list[str], data: st.DataObject) -> None:
    """And a rule that all tools meet, before the others, decides alone."""
    tool = data.draw(st.sampled_from([function(), function(read_only=True), served(), served(read_only=True, is_trusted=True)]))
    given_rules = [ApprovalRule(tool="*", when=each, decision="ask") for each in conditions]
    config = ApprovalConfig(rules=tuple(given_rules))
    foreign = ApprovalRule(tool="other.*", decision="deny")
    assert ruling_on(ApprovalConfig(rules=(foreign, *given_rules)), tool) == ruling_on(config, tool)
    first = ApprovalRule(tool="*", decision="deny")
    assert ruling_on(ApprovalConfig(rules=(first, *given_rules)), tool) == ("deny", "*")


@pytest.mark.parametrize("condition", ["", *TRAITS, *(f"not {each}" for each in TRAITS), "read_only and not trusted"])
def test_a_condition_holds_for_exactly_the_tools_that_have_its_traits(condition: str) -> None:
    wanted = condition_terms(condition)
    config = ApprovalConfig(rules=(ApprovalRule(tool="*", when=condition, decision="deny"),))
    for values in product((True, False), repeat=len(TRAITS)):
        has = dict(zip(TRAITS, values, strict=True))
        traits = {("is_trusted" if name == "trusted" else name): value for name, value in has.items()}
        tool = ToolIdentity(
            tool_id="t",
            policy_name="t",
            source=ToolSource("tool:t"),
            traits=ToolTraits(**traits),
            requires_approval=False,
            definition_hash="h",
        )
        fits = all(has[name] is value for name, value in wanted.items())
        assert (ruling_on(config, tool).decision == "deny") is fits


@pytest.mark.parametrize(
    "condition",
    [
        "readonly",
        "not",
        "and",
        "read_only and",
        "read_only or trusted",
        "not not trusted",
        "READ_ONLY",
        " ",
        "(trusted)",
        "trusted and not trusted",
    ],
)
def test_a_condition_that_says_nothing_known_is_refused(condition: str) -> None:
    with pytest.raises(ConfigError, match="expected different traits joined by 'and'"):
        ApprovalRule(tool="*", when=condition, decision="ask")


def test_a_tool_that_is_denied_is_not_offered_and_neither_asks_nor_counts_as_an_effect() -> None:
    config = ApprovalConfig(after_untrusted="ask", **rules(("fs.*", "", "deny")))
    found = policy_of(config, [function(), function("look", read_only=True), served()])
    assert found.offered == ("write", "look")
    assert (dict(found.asks), found.effects, found.asks_later) == ({}, ("write",), ("write",))
    assert found.held_back(shows_untrusted=False) == frozenset()
    assert found.held_back(shows_untrusted=True) == {"write"}
