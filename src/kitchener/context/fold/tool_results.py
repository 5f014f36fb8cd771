"""Turns tool results into items for later turns. An item has an excerpt: the result's beginning and what matches the message.

If a reply repeats a result, the reply is record enough, and the result is not offered again. Failed calls are not offered
either, because an error is no fact about the world. This module does not know where results are recorded
(`actors/sessions/recalled_results.py`) or which of them are shown (`projection.py`).
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kitchener.canonical import canonical_bytes
from kitchener.context.fold.excerpts import GAP, joined
from kitchener.context.fold.items import SEPARATOR, TIER_RESULT, Item, Reasons, first_line
from kitchener.context.lexical.words import terms_of, words_of
from kitchener.records.entries import Json
from kitchener.records.ref import Ref
from kitchener.records.spoken import as_said
from kitchener.records.tokens import Estimator

MAX_CHARS: Final = 32_768
"""Most characters of one result that are kept and searched for words of the message."""
_PASSAGE_CHARS: Final = 160
"""Longest passage of an excerpt. A passage is shown whole or not at all, so a shorter one wastes less of the limit."""
_KEY_CHARS: Final = 60
"""Most characters of the keys above a value that are repeated in its passage."""
_REASONS: Final[Reasons] = ("TOOL_RESULT", "REACHABLE_FROM_INTENT")


class ToolResult(NamedTuple):
    """The result of one tool call of an earlier turn."""

    ref: Ref
    """The call's `TOOL_CALL` entry."""
    timestamp: str
    """That entry's timestamp."""
    turn_id: str
    """The turn that made the call."""
    wo_id: str
    """The work order that made the call."""
    call: int
    """Number of the call within the work order, from 1."""
    tool_id: str
    text: str
    """The result as text, see `result_text`."""
    untrusted_source: str | None = None
    """The untrusted source, such as `mcp:web`; None: the source is trusted."""

    @property
    def result_id(self) -> str:
        """The result's name, see the function `result_id`."""
        return result_id(self.wo_id, self.call)


def result_id(wo_id: str, call: int) -> str:
    """The name of a tool's result, e.g. `WO-SES-1a2b3c4d-002.1`.

    Args:
        wo_id: the work order that made the call
        call: number of the call within the work order, from 1
    """
    return f"{wo_id}.{call}"


def result_text(result: Json) -> str:
    """A result as text of at most `MAX_CHARS` characters: text unchanged; an object or a list with one part a line."""
    if isinstance(result, str):
        return result[:MAX_CHARS]
    lines, size = list[str](), 0
    for line in _lines(result, ""):
        lines.append(line)
        size += len(line) + 1
        if size > MAX_CHARS:
            break
    return "\n".join(lines)[:MAX_CHARS]


def is_repeated(result: Json, reply: str) -> bool:
    """Whether a reply contains every word of a result, in any order. Names of fields do not count.

    Also True for a result without words, such as an empty list: there is nothing to recall.
    """
    said = set(words_of(reply.casefold()))
    return all(word in said for leaf in _leaves(result) for word in words_of(leaf.casefold()))


def result_item(
    result: ToolResult, message: str, most_tokens: int, estimate: Estimator, *, intent_id: str | None = None
) -> Item:
    """A tool's result as an item.

    Args:
        result: the result
        message: the user's message; passages that share words with it come before others
        most_tokens: most tokens of the item
        estimate: counts the tokens of a text
        intent_id: the intent of the turn that made the call; None: it has none
    """
    source = result.untrusted_source
    named = f"tool {result.tool_id}" if source is None else f"tool {result.tool_id}, from {source}, not trusted"
    head = f"Work order {result.wo_id} ({named}) gave: "
    over, room, text = estimate(head + SEPARATOR), most_tokens, head
    while over > 0 and room > 0:  # repeats because marks before lines that imitate another speaker take tokens too
        room -= over
        text = head + as_said(excerpt(result.text, message, room, estimate))
        over = estimate(text + SEPARATOR) - most_tokens
    stub = f"[{result.result_id}] {result.tool_id}: {first_line(result.text)}"
    return Item(
        result.result_id,
        "tool_result",
        result.ref,
        (result.timestamp, result.ref.entry_id, result.ref.ledger_id),
        text,
        stub,
        estimate(text + SEPARATOR),
        estimate(stub + SEPARATOR),
        TIER_RESULT,
        _REASONS,
        result.ref,
        intent_id,
        untrusted_source=source,
    )


def excerpt(text: str, message: str, most_tokens: int, estimate: Estimator) -> str:
    """A text within a limit of tokens: whole if it fits; otherwise passages in order, with `…` for what is left out.

    The first passage is chosen first, then the passages that share most terms with the message, then those that follow the
    beginning. A passage that does not fit is skipped; if none fits, the text is cut.
    """
    if estimate(text) <= most_tokens:
        return text
    passages = list(_passages(text))
    left, chosen, misfits = most_tokens, set[int](), 0
    for number in _by_rank(passages, message):
        size = estimate(f"{passages[number]}\n{GAP}\n")
        if size <= left:
            left -= size
            chosen.add(number)
        elif (misfits := misfits + 1) > _MAX_MISFITS:
            break
    return joined(passages, chosen, "\n") if chosen else _cut(passages[0], most_tokens, estimate)


_MAX_MISFITS: Final = 8
"""After so many passages that did not fit, no smaller one is tried."""


def _by_rank(passages: Sequence[str], message: str) -> Iterator[int]:
    wanted = _terms(message)
    scores = [len(wanted & _terms(passage)) for passage in passages] if wanted else []
    matching = [number for number, score in enumerate(scores) if score and number]
    matching.sort(key=lambda number: -scores[number])
    yield from dict.fromkeys((0, *matching, *range(len(passages))))


def _terms(text: str) -> frozenset[str]:
    return frozenset([term for word in words_of(text.casefold()) for term in terms_of(word)])


def _cut(passage: str, most_tokens: int, estimate: Estimator) -> str:
    while passage and estimate(passage + GAP) > most_tokens:
        passage = passage[: len(passage) * 3 // 4]
    return passage + GAP


def _passages(text: str) -> Iterator[str]:
    """The lines of a text. A long one is split."""
    for line in text.splitlines() or ("",):
        start = 0
        while len(line) - start > _PASSAGE_CHARS:
            space = line.rfind(" ", start + _PASSAGE_CHARS // 2, start + _PASSAGE_CHARS)
            end = space if space > 0 else start + _PASSAGE_CHARS
            yield line[start:end]
            start = end
        yield line[start:]


def _lines(value: Json, keys: str) -> Iterator[str]:
    """A JSON value as lines. A short value takes one line; a long one is split, and each part repeats the keys above it."""
    text = value if isinstance(value, str) else canonical_bytes(value).decode()
    if not isinstance(value, dict | list) or len(text) + len(keys) <= _PASSAGE_CHARS:
        yield keys + text
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _lines(each, f"{keys}{key}: "[-_KEY_CHARS:])
    else:
        yield from _list_lines(value, keys)


def _list_lines(values: Sequence[Json], keys: str) -> Iterator[str]:
    """The elements of a list, as many on a line as fit."""
    line = ""
    for each in values:
        text = each if isinstance(each, str) else canonical_bytes(each).decode()
        if line and len(keys) + len(line) + len(text) > _PASSAGE_CHARS:
            yield keys + line
            line = ""
        if isinstance(each, dict | list) and len(keys) + len(text) > _PASSAGE_CHARS:
            yield from _lines(each, keys)
        else:
            line = f"{line}, {text}" if line else text
    if line:
        yield keys + line


def _leaves(value: Json) -> Iterator[str]:
    """The texts and numbers in a JSON value, at any depth."""
    if isinstance(value, dict):
        for each in value.values():
            yield from _leaves(each)
    elif isinstance(value, list):
        for each in value:
            yield from _leaves(each)
    elif value is not None:
        yield str(value)
