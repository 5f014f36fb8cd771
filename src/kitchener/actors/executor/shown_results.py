"""Turns the outcome of a tool call into what a model reads: a text, and a line about that text.

The text of a tool is shown unchanged. Objects, lists, numbers and errors are shown as canonical JSON. `result_pages.py` chooses
which part of a long result is shown. `tool_calls.py` puts untrusted text into a block; the line stands outside the block.
Explained in `docs/tools.md`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kitchener.actors.tools.results import ToolOutcome, cut_note, cut_text
from kitchener.canonical import canonical_bytes
from kitchener.records.entries import Json


@dataclass(frozen=True, slots=True)
class ShownResult:
    """The part of an outcome that a model is shown."""

    text: str
    """The result, a page of it, or an error."""
    note: str | None = None
    """A line about the text, not by the tool: which characters it shows, or that it was cut. None: the text is whole."""
    is_escaped: bool = False
    """Whether a text is shown as JSON, in quotes, as up to version 7 of the policy."""

    @property
    def size(self) -> int:
        """Bytes of UTF-8 that are shown."""
        return len(self.text.encode()) + (len(self.note.encode()) + 1 if self.note is not None else 0)

    def cut(self, max_bytes: int) -> "ShownResult":
        """The beginning of the shown text with a note, in `max_bytes` bytes; or only the note, if it needs more."""
        if self.is_escaped:
            return ShownResult(cut_text(self.text, max_bytes), is_escaped=True)
        note = cut_note(self.size, max_bytes)
        return ShownResult(text_within(self.text, max_bytes - len(note) - 1), note)

    def around(self, text: str) -> str:
        """The message with `text` in place of this text: above the note, if there is one."""
        return text if self.note is None else f"{text}\n{self.note}" if text else self.note


def shown_result(outcome: ToolOutcome, *, is_page: bool) -> ShownResult:
    """Returns what a model is shown of an outcome.

    Args:
        outcome: the shown part of a call's outcome
        is_page: whether the result is a page, made by `page_of`
    """
    if outcome.error is not None:
        return ShownResult(outcome.as_text())
    result = outcome.result
    if is_page and isinstance(result, Mapping):
        return ShownResult(str(result["text"]), _place(result))
    if isinstance(result, str) and not is_blank(result):
        return ShownResult(result)
    return ShownResult(canonical_bytes(result).decode())


def is_blank(text: str) -> bool:
    """Whether a text is blank. Then it is shown as JSON, because chat interfaces refuse a blank message."""
    return not text or text.isspace()


def cut_within(text: str, max_bytes: int) -> str:
    """The beginning of a text with a marker, in `max_bytes` bytes; or only the marker, if it needs more."""
    marker = f" … {cut_note(len(text.encode()), max_bytes)}"
    return text_within(text, max_bytes - len(marker.encode())) + marker


def text_within(text: str, max_bytes: int) -> str:
    """The beginning of a text, of at most `max_bytes` bytes in UTF-8."""
    return text[: max(0, max_bytes)].encode()[: max(0, max_bytes)].decode(errors="ignore")


def _place(page: Mapping[str, Json]) -> str:
    """The line that says which characters a page shows, and how to read on."""
    text, of, end = str(page["text"]), page["characters"], page.get("next_offset", page["characters"])
    assert isinstance(end, int)
    where = f"characters {end - len(text)} to {end} of {of}"
    return f"[{where}; {page['more']}]" if "more" in page else f"[{where}, the end]"
