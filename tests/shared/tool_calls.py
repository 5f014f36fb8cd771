"""The facts of a tool call that no turn makes."""

from typing import Any

import anyio

from kitchener.records.tools.tool_context import ToolContext


def a_call(deadline_in: float = 1_000.0, **facts: Any) -> ToolContext:
    """A call whose deadline lies so many seconds ahead."""
    return ToolContext(
        idempotency_key="TK-1",
        session_id="SES-0000000a",
        subject_id="ada",
        turn_id="T-0000000a-000001",
        wo_id="WO-SES-0000000a-001",
        deadline=anyio.current_time() + deadline_in,
        **facts,
    )
