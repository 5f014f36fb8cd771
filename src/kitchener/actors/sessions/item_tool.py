"""A built-in tool that returns the full text of an item that the context shows as a stub, and the pages of a long result.

The tool only reads, and never changes what is eligible. The supervisor offers it if the context has stubs and tools are
allowed; the executor offers it as soon as a result has more pages. It sees only the session of its own call.
"""

from collections.abc import Callable
from functools import cache
from typing import Annotated, Final

from pydantic import Field

from kitchener.actors.authority.session_thread import SessionThread
from kitchener.actors.tools.tool import Tool
from kitchener.context.projection.explanation import find_placed
from kitchener.errors import ToolError
from kitchener.records.entries import Json
from kitchener.records.tools.tool_context import ToolContext

ITEM_TOOL: Final = "read_context_item"
_DESCRIPTION: Final = "Read in full an item of the context that is shown as a stub, by the id in its square brackets."
_PAGED: Final = (
    "Read in full an item of the context that is shown as a stub, by the id in its square brackets, or read on in a long result"
    " of a tool, by its item_id and next_offset."
)
_MAX_PAGE_BYTES: Final = 4 * 1_048_576
"""Largest result of the tool. Larger than any page, because a cut page would not say where the next one begins."""


class ContextItems:
    """The tool, with the function that finds the thread of the calling session.

    Args:
        reads_pages: whether the tool also reads the pages of results; False: as up to version 5 of the policy
    """

    def __init__(self, *, reads_pages: bool = True) -> None:
        self._reader = reader = _ItemReader()
        self.tool = _shape(reads_pages=reads_pages).running(reader.read_page if reads_pages else reader.read)

    def bind(self, thread_of: Callable[[str], SessionThread | None]) -> None:
        """Sets the function that returns the thread of a session."""
        self._reader.thread_of = thread_of


class _ItemReader:
    """Reads items of the threads that the given function finds."""

    thread_of: Callable[[str], SessionThread | None] | None = None

    async def read_page(self, item_id: str, context: ToolContext, offset: Annotated[int, Field(ge=0)] = 0) -> Json:
        page = context.read_page(plain_item_id(item_id), offset) if context.read_page is not None else None
        return page if page is not None else (await self.read(item_id, context))[offset:]

    async def read(self, item_id: str, context: ToolContext) -> str:
        thread = self.thread_of(context.session_id) if self.thread_of is not None else None
        projection = thread.projection if thread is not None else None
        placed = find_placed(projection, plain_item_id(item_id)) if projection is not None else None
        if placed is None:
            raise ToolError(f"there is no item {item_id!r} in this context; take an id in square brackets from a stub")
        if placed.item.untrusted_source is not None and context.note_source is not None:
            context.note_source(plain_item_id(item_id), placed.item.untrusted_source)
        return placed.item.whole or placed.item.text


@cache
def _shape(*, reads_pages: bool) -> Tool[..., object]:
    """The tool without threads to read. All runtimes of a process share it."""
    reader = _ItemReader()
    if reads_pages:
        return Tool(reader.read_page, name=ITEM_TOOL, description=_PAGED, read_only=True, max_result_bytes=_MAX_PAGE_BYTES)
    return Tool(reader.read, name=ITEM_TOOL, description=_DESCRIPTION, read_only=True)


def plain_item_id(text: str) -> str:
    """An item's id without the square brackets in which a stub shows it."""
    return text.strip("[] ")
