"""What a user sees of a setting of approval that no recorded session shows, as in `observed_turns.py`."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

from kitchener.actors.tools.approval_policy import policy_of
from kitchener.config import ApprovalConfig
from kitchener.records.tools.runnable_tool import ToolIdentity, ToolSource, ToolTraits


async def of_a_server(_: Path, **approval: Any) -> Hashable:
    """What the policy says of a tool of an MCP server."""
    write = ToolIdentity(
        tool_id="fs__write",
        policy_name="fs.write",
        source=ToolSource("mcp:fs"),
        traits=ToolTraits(),
        requires_approval=False,
        definition_hash="h",
    )
    found = policy_of(ApprovalConfig(**approval), [write])
    return found.offered, tuple(found.asks)
