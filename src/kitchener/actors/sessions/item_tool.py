"""The built-in tool that fetches in full what a projection shows as a stub only. Reads; never changes what is eligible.

It is offered where stubs are shown and tools are allowed, and it knows nothing but the session of the call it runs for.
"""

from collections.abc import Callable
from typing import Final

from kitchener.actors.authority.authority import SessionThread
from kitchener.actors.tools.registry import Tool, ToolCall
from kitchener.context.projection.explanation import find_placed
from kitchener.errors import ToolError

ITEM_TOOL: Final = "read_context_item"
_DESCRIPTION: Final = "Read in full an item of the context that is shown as a stub, by the id in its square brackets."


class ContextItems:
    """The tool, and the way to the sessions' threads that it reads from."""

    def __init__(self) -> None:
        self._thread_of: Callable[[str], SessionThread | None] | None = None
        self.tool = Tool(self._read, name=ITEM_TOOL, description=_DESCRIPTION, read_only=True)

    def bind(self, thread_of: Callable[[str], SessionThread | None]) -> None:
        """Says where the thread of a session is."""
        self._thread_of = thread_of

    async def _read(self, item_id: str, call: ToolCall) -> str:
        thread = self._thread_of(call.session_id) if self._thread_of is not None else None
        projection = thread.projection if thread is not None else None
        placed = find_placed(projection, item_id.strip("[] ")) if projection is not None else None
        if placed is None:
            raise ToolError(f"there is no item {item_id!r} in this context; take an id in square brackets from a stub")
        return placed.item.text
