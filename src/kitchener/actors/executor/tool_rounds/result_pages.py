"""Shows a model long results of tools page by page. The ledger has each result whole.

A model is shown the beginning of a long result, and reads on with the built-in tool `read_context_item`. Explained in
`docs/tools.md`.
"""

from typing import Final

from kitchener.actors.tools.results import ToolOutcome, beginning
from kitchener.canonical import canonical_bytes
from kitchener.context import result_id
from kitchener.errors import ToolError
from kitchener.records.entries import Json
from kitchener.records.tokens import BYTES_PER_TOKEN

_AROUND_BYTES: Final = 200
"""Bytes of a page besides its text."""


class ResultPages:
    """The long results of one work order.

    Args:
        wo_id: the work order
        page_tokens: tokens of one page; None: all of a result is shown at once
    """

    __slots__ = ("_page_bytes", "_texts", "_untrusted", "_wo_id")

    def __init__(self, wo_id: str, page_tokens: int | None) -> None:
        self._wo_id = wo_id
        self._page_bytes = page_tokens * BYTES_PER_TOKEN if page_tokens is not None else None
        self._texts: dict[str, str] = {}
        self._untrusted: dict[str, str] = {}

    @property
    def has_more(self) -> bool:
        """Whether the model was shown less than all of some result."""
        return bool(self._texts)

    def first(self, call: int, outcome: ToolOutcome, wo_id: str | None = None) -> ToolOutcome:
        """Returns the outcome of a call as the model is shown it: whole, or the first page of its result.

        Args:
            call: number of the call within the work order, from 1
            outcome: of the call
            wo_id: the work order that made the call; None: this one
        """
        most = self._page_bytes
        if most is None or outcome.error is not None or len(whole := canonical_bytes(outcome.result)) <= most:
            return outcome
        item_id = result_id(wo_id or self._wo_id, call)
        self._texts[item_id] = outcome.result if isinstance(outcome.result, str) else whole.decode()
        if outcome.untrusted_source is not None:
            self._untrusted[item_id] = outcome.untrusted_source
        return ToolOutcome(result=page_of(self._texts[item_id], item_id, 0, most))

    def untrusted_source(self, item_id: object) -> str | None:
        """Where a result of several pages comes from, if that is not trusted; None: it is, or there is no such result."""
        return self._untrusted.get(_plain(item_id)) if isinstance(item_id, str) else None

    def read(self, item_id: str, offset: int) -> Json:
        """Returns a page of a result of this work order; None: it has no such result of several pages.

        Raises:
            ToolError: the result ends before the offset
        """
        item_id = _plain(item_id)
        text = self._texts.get(item_id)
        return None if text is None or self._page_bytes is None else page_of(text, item_id, offset, self._page_bytes)


def _plain(item_id: str) -> str:
    """The id without the brackets that stand around it where it is shown."""
    return item_id.strip("[] ")


def page_of(text: str, item_id: str, offset: int, page_bytes: int) -> Json:
    """A page of a text as an object of about `page_bytes` bytes, which says where the next one begins, if there is one.

    Raises:
        ToolError: the text ends before the offset
    """
    if offset and offset >= len(text):
        raise ToolError(f"item {item_id!r} has {len(text)} characters: expected an offset below that, found {offset}")
    shown = beginning(text[offset : offset + page_bytes], max(1, page_bytes - _AROUND_BYTES))
    end = offset + max(1, len(shown))
    page: dict[str, Json] = {"text": text[offset:end], "item_id": item_id, "characters": len(text)}
    if end < len(text):
        page |= {"next_offset": end, "more": f"read_context_item(item_id={item_id!r}, offset={end}) reads on"}
    return page
