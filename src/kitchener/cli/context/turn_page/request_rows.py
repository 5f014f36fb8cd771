"""Arranges rebuilt requests to models for the page, and compares them with the previous turn's. Pure.

Later requests of a turn repeat the messages of earlier ones. The page contains each text once and refers to it, so that its
size is proportional to the conversation.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kitchener.cli.context.shown_requests import (
    as_readable,
    asked_words,
    fields_words,
    hash_verdict,
    message_lines,
    message_title,
    offered_tools,
    request_lines,
    tool_title,
    usage_words,
)
from kitchener.cli.context.turn_page.shapes import Bar, FoldedText, bar_of, folded
from kitchener.inspection.shown_text import UNREADABLE
from kitchener.records.entries import opened
from kitchener.records.prompt import PromptRequest
from kitchener.replaying import RecordedPrompt
from kitchener.replaying.comparison import line_diff

_MARK_CHARS: Final = len("<data-0123456789abcdef>")
_HEAD_LINES: Final = 2
"""Number of lines at the head of a unified diff, which name its two texts."""


class Piece(NamedTuple):
    """A message, an offered tool or the schema of the answer."""

    anchor: str
    """Its id in the page; "": the text is shown elsewhere."""
    fold: FoldedText
    same_as: str
    """The id of the piece that shows this text; "": this one shows it."""
    same_words: str
    """What a reader is told to look at instead, such as `request 1, part 2`."""


class RequestRow(NamedTuple):
    """One request to a model, with its answer."""

    number: int
    title: str
    facts: Sequence[tuple[str, str]]
    is_wrong: bool
    """Whether its hash differs from the recorded one."""
    bar: Bar
    pieces: Sequence[Piece]
    answer: FoldedText | None
    """None: no provider answered."""


class DiffLine(NamedTuple):
    """One line of a unified diff."""

    kind: str
    """`added`, `removed`, `place` or `same`."""
    text: str


class ChangedRequest(NamedTuple):
    """A request compared with the one of the same kind in the turn before."""

    title: str
    lines: Sequence[DiffLine]
    """The differences; empty: there are none."""


def request_rows(calls: Sequence[RecordedPrompt]) -> list[RequestRow]:
    """The requests of a turn, in order."""
    known: dict[tuple[str, str], Piece] = {}
    return [_row(number, each, known) for number, each in enumerate(calls, 1)]


def _row(number: int, prompt: RecordedPrompt, known: dict[tuple[str, str], Piece]) -> RequestRow:
    request = prompt.request
    facts = (
        ("contract", f"{request.contract_id}, prompt pack {request.prompt_pack_version}"),
        ("asked", asked_words(prompt)),
        *([("fields", fields_words(prompt))] if prompt.request_fields else ()),
        ("hash", f"{prompt.request_hash}, {hash_verdict(prompt)}"),
        ("tokens", f"{prompt.tokens:,} estimated{usage_words(prompt.usage)}"),
    )
    return RequestRow(
        number,
        f"{request.wo_type}, call {request.call} of {request.wo_id}",
        facts,
        prompt.is_verified is False,
        bar_of((each.name, each.tokens) for each in prompt.parts),
        [_piece(number, place, title, text, known) for place, (title, text) in enumerate(_texts(request), 1)],
        _answer(prompt),
    )


def _texts(request: PromptRequest) -> Iterator[tuple[str, str]]:
    for message in request.messages:
        yield message_title(message), "\n".join(message_lines(message))
    for tool in offered_tools(request):
        yield tool_title(request, tool["tool_id"]), as_readable(tool)
    if request.output_schema is not None:
        yield "schema of the answer", as_readable(request.output_schema)


def _piece(number: int, place: int, title: str, text: str, known: dict[tuple[str, str], Piece]) -> Piece:
    first = known.get((title, text))
    if first is not None:
        return Piece("", FoldedText(title, "", ""), first.anchor, first.same_words)
    piece = Piece(f"request-{number}-{place}", folded(title, text), "", f"request {number}, part {place}")
    known[title, text] = piece
    return piece


def _answer(prompt: RecordedPrompt) -> FoldedText | None:
    if prompt.answer is None:
        return None
    answer = opened(prompt.answer["response"])
    if answer is None:
        return folded("answer", UNREADABLE)
    asks = [f"asks for {use['tool_id']} {as_readable(use['arguments'])}" for use in answer["tool_uses"]]
    return folded("answer", "\n".join([*([answer["text"]] if answer["text"] else []), *asks]))


def changed_requests(before: Sequence[RecordedPrompt], after: Sequence[RecordedPrompt]) -> list[ChangedRequest]:
    """Each request compared with its counterpart in the turn before: same kind, same place. Leaves out requests without one."""
    earlier = {key: each.request for key, each in _by_place(before)}
    found = []
    for key, prompt in _by_place(after):
        request = earlier.get(key)
        if request is not None:
            lines = request_diff("\n".join(request_lines(request)), "\n".join(request_lines(prompt.request)))
            found.append(ChangedRequest(f"{key[0]}, request {key[1]} of its kind", lines))
    return found


def _by_place(calls: Sequence[RecordedPrompt]) -> Iterator[tuple[tuple[str, int], RecordedPrompt]]:
    seen: dict[str, int] = {}
    for each in calls:
        kind = each.request.wo_type
        seen[kind] = seen.get(kind, 0) + 1
        yield (kind, seen[kind]), each


def request_diff(before: str, after: str) -> list[DiffLine]:
    """A unified diff of two requests, ignoring the digits in the delimiters of data; empty: they are equal."""
    old, new = ([_without_mark(line) for line in text.split("\n")] for text in (before, after))
    diff = line_diff(old, new, "the turn before", "this turn")
    return [DiffLine(_kind(number, line), line) for number, line in enumerate(diff.split("\n") if diff else ())]


def _kind(number: int, line: str) -> str:
    if number < _HEAD_LINES or line.startswith("@@"):
        return "place"
    return {"+": "added", "-": "removed"}.get(line[:1], "same")


def _without_mark(line: str) -> str:
    """A line without the digits in a delimiter of data, which differ from turn to turn."""
    for begins in ("<data-", "</data-"):
        if line.startswith(begins) and line.endswith(">") and len(line) == _MARK_CHARS + len(begins) - len("<data-"):
            return f"{begins[:-1]}>"
    return line
