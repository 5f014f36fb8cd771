"""What a user sees of a setting of approval, as in `observed_turns.py`."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

from kitchener.actors.tools.approval_policy import policy_of
from kitchener.config import ApprovalConfig
from kitchener.errors import ApprovalAnswered
from kitchener.records.tools import ToolIdentity, ToolSource, ToolTraits
from kitchener.testing import FakeClock
from tests.acceptance.approval.kit import Desk, model, open_desk
from tests.config.observed_turns import Observer


def rule(key: str, **others: str) -> Observer:
    """The scene of `asked` under one value of a rule."""

    async def observe(root: Path, value: str) -> Hashable:
        return await asked(root, rules=[{**others, key: value}])

    return observe


async def asked(root: Path, **approval: Any) -> Hashable:
    """A turn whose model looks at a file and writes one: what was done, and how many calls wait."""
    desk = Desk()
    provider = model([("look", {"path": "a"}), ("write", {"path": "b"})])
    async with open_desk(root, desk, provider, approval=approval) as runtime:
        result = await runtime.supervisor().handle_turn("tidy up")
    return (*desk.done, len(result.pending_approval))


async def answered_late(root: Path, **approval: Any) -> Hashable:
    """An approval after an hour: what was done."""
    desk, clock = Desk(), FakeClock()
    async with open_desk(root, desk, model([("delete", {"path": "a"})]), clock, approval=approval) as runtime:
        waiting = await runtime.supervisor().handle_turn("tidy up")
        clock.advance(3_600)
        try:
            await runtime.supervisor().approve(waiting.pending_approval[0])
        except ApprovalAnswered as error:
            return error.decision
    return tuple(desk.done)


async def of_a_server(_: Path, **approval: Any) -> Hashable:
    """What the policy says of a tool of an MCP server."""
    traits = ToolTraits()
    names = {"tool_id": "fs__write", "policy_name": "fs.write", "source": ToolSource("mcp:fs"), "definition_hash": "h"}
    write = ToolIdentity(traits=traits, requires_approval=False, **names)  # type: ignore[arg-type]
    found = policy_of(ApprovalConfig(**approval), [write])
    return found.offered, tuple(found.asks)
