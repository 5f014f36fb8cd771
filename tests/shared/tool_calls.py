"""Tool calls that no turn makes."""

from collections.abc import Mapping
from typing import Any

import anyio

from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.tools.results import ToolOutcome
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


async def called(registry: ToolRegistry, tool_id: str, arguments: Mapping[str, object], call: ToolContext) -> ToolOutcome:
    """Checks the arguments and runs the tool, as the executor does."""
    bound = registry.validate(tool_id, arguments)
    return ToolOutcome(error=bound) if isinstance(bound, str) else await registry.run(tool_id, bound, call, given=arguments)
