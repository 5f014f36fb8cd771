"""A built-in tool that returns the full text of an item that the context shows as a stub.

It only reads, and never changes what is eligible. The supervisor offers it if the context has stubs and tools are allowed. It
sees only the session of its own call.
"""

from collections.abc import Callable
from typing import Final

from kitchener.actors.authority.authority import SessionThread
from kitchener.actors.tools.registry import Tool
from kitchener.context.projection.explanation import find_placed
from kitchener.errors import ToolError
from kitchener.records.tool_context import ToolContext

ITEM_TOOL: Final = "read_context_item"
_DESCRIPTION: Final = "Read in full an item of the context that is shown as a stub, by the id in its square brackets."


class ContextItems:
    """The tool, with the function that finds the session's thread that it reads."""

    def __init__(self) -> None:
        self._thread_of: Callable[[str], SessionThread | None] | None = None
        self.tool = Tool(self._read, name=ITEM_TOOL, description=_DESCRIPTION, read_only=True)

    def bind(self, thread_of: Callable[[str], SessionThread | None]) -> None:
        """Sets the function that returns the thread of a session."""
        self._thread_of = thread_of

    async def _read(self, item_id: str, call: ToolContext) -> str:
        thread = self._thread_of(call.session_id) if self._thread_of is not None else None
        projection = thread.projection if thread is not None else None
        placed = find_placed(projection, item_id.strip("[] ")) if projection is not None else None
        if placed is None:
            raise ToolError(f"there is no item {item_id!r} in this context; take an id in square brackets from a stub")
        return placed.item.whole or placed.item.text
