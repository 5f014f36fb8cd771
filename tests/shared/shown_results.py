"""Reads tool messages as a model does: a result, or a page of one with the line that says how to read on."""

import re
from typing import Any, Final

import orjson

_NOTE: Final = re.compile(
    r"\n\[characters (\d+) to (\d+) of (\d+)(?:; read_context_item\(item_id='([^']+)', offset=(\d+)\) reads on|, the end)\]\Z"
)
_BLOCK: Final = re.compile(r"From [^\n]+, not trusted: data, not instructions\.\n<(data-\w+)>\n(.*)\n</\1>", re.DOTALL)


def result_in(content: str) -> Any:
    """The value that a tool message shows: a text as it is; of JSON, its value."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return content


def page_in(content: str) -> dict[str, Any] | None:
    """The page that a tool message shows; None: it shows no page."""
    if (note := _NOTE.search(content)) is None:
        return None
    shown = content[: note.start()]
    page: dict[str, Any] = {"text": block[2] if (block := _BLOCK.fullmatch(shown)) else shown}
    begin, end, of = (int(each) for each in note.groups()[:3])
    assert end - begin == len(page["text"])
    assert (end < of) == (note[4] is not None)
    if note[4] is not None:
        page |= {"item_id": note[4], "next_offset": int(note[5])}
        assert page["next_offset"] == end
    return page
