"""Turns an answer that is still growing into updates for whoever watches the turn.

Neighbours: `execution.py` feeds it what the gateway streams; `answers.py` reads the same answer once it is whole. It knows no
ledger: what it tells is provisional. Explained in `docs/work-orders.md`.
"""

import re
from typing import Final, Literal

import orjson

from kitchener.actors.executor.answers import REPLY_KEY
from kitchener.records.turn import TextDelta, TextRetracted, ToolRan, UpdateListener


class ReplyStream:
    """Tells one listener the text of one work order's reply, so that what it holds in the end is the reply itself."""

    def __init__(self, wo_id: str, listener: UpdateListener) -> None:
        self._wo_id, self._listener = wo_id, listener
        self._text = ReplyText()
        self._attempt = 1

    async def piece(self, attempt: int, text: str) -> None:
        """Some more of the answer."""
        self._attempt = attempt
        if new := self._text.feed(text):
            await self._listener(TextDelta(self._wo_id, attempt, new))

    async def void(self) -> None:
        """What was told is void: the answer is made anew, was no reply, or will not come."""
        if self._text.given:
            await self._listener(TextRetracted(self._wo_id))
        self._text = ReplyText()

    async def finish(self, reply: str) -> None:
        """The reply is known: tells what is missing, or takes back what does not fit and tells all of it."""
        if not reply.startswith(self._text.given):
            await self.void()
        if rest := reply[len(self._text.given) :]:
            await self._listener(TextDelta(self._wo_id, self._attempt, rest))
            self._text.note(rest)

    async def tool_ran(self, tool_id: str, *, is_error: bool) -> None:
        """A tool ended."""
        await self._listener(ToolRan(self._wo_id, tool_id, is_error))


class ReplyText:
    """Takes the pieces of a growing answer and gives the pieces of the reply in it.

    An answer that is a JSON object is searched for the text of its top-level `response_text`, escapes decoded; any other
    answer is the reply itself. What cannot be decided yet is held back, so what was given out once is right as long as the
    answer stays what it looked like. Each piece is read once, however many there are.
    """

    def __init__(self) -> None:
        self._given: list[str] = []
        self._mode: Literal["undecided", "plain", "object", "text", "over"] = "undecided"
        self._opening = _Opening()
        self._scan = _KeyScan()
        self._escape = ""

    @property
    def given(self) -> str:
        """All that was given out, for the caller to compare with the final reply."""
        self._given = ["".join(self._given)]
        return self._given[0]

    def feed(self, piece: str) -> str:
        """The new text of the reply in `piece`; "" if there is none yet."""
        rest = piece
        if self._mode == "undecided":
            decided, rest = self._opening.feed(piece)
            if decided is None:
                return ""
            self._mode = decided
        if self._mode == "object":
            found, rest = self._scan.feed(rest)
            if found is None:
                return ""
            self._mode = found
        if self._mode == "text":
            rest = self._decoded(rest)
        elif self._mode == "over":
            return ""
        self.note(rest)
        return rest

    def note(self, given: str) -> None:
        """Takes note of a piece of the reply that was given out."""
        if given:
            self._given.append(given)

    def _decoded(self, piece: str) -> str:
        """The decoded part of a piece of the string; an escape that is not whole is kept for the next piece."""
        held, at = self._escape + piece, 0
        out: list[str] = []
        while found := _STRING_PART.match(held, at):
            part = found[0]
            if part[0] == "\\":
                try:
                    part = orjson.loads(f'"{part}"')
                except orjson.JSONDecodeError:
                    self._mode = "over"  # no valid string; the caller sees the rest in the final reply or not at all
                    break
            out.append(part)
            at = found.end()
        self._escape = held[at : at + _MAX_ESCAPE_CHARS]
        if self._escape.startswith('"') or len(self._escape) == _MAX_ESCAPE_CHARS:
            self._mode = "over"  # the string has ended, or holds an escape that there is not
        return "".join(out)


# Plain text; or an escape; or two escapes that are the halves of one character. A first half waits for its second.
_STRING_PART: Final = re.compile(
    r'[^"\\]+'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}"
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}(?=[^\\]|\\[^u])"
    r"|\\u(?![dD][89abAB])[0-9a-fA-F]{4}"
    r"|\\[^u]"
)
_MAX_ESCAPE_CHARS: Final = 12
"""Of the longest escape, two halves of one character."""


class _Opening:
    """Reads the beginning of an answer until it is known whether it is an object, in a fence or not, or plain text."""

    def __init__(self) -> None:
        self._read: list[str] = []
        self._step: Literal["before", "fence", "after a fence's word", "body"] = "before"
        self._fence = ""

    def feed(self, piece: str) -> tuple[Literal["plain", "object"] | None, str]:
        """What the answer is, None while that cannot be told, and what is to be read on: all of it if it is plain."""
        self._read.append(piece)
        for at, char in enumerate(piece):
            if self._step in ("before", "body"):
                if char == "{":
                    return "object", piece[at:]
                if not char.isspace() and not self._opens_fence(char):
                    return "plain", "".join(self._read)
            elif not self._goes_on(char):
                return "plain", "".join(self._read)
        return None, ""

    def _opens_fence(self, char: str) -> bool:
        if char != "`" or self._step == "body":
            return False
        self._step, self._fence = "fence", char
        return True

    def _goes_on(self, char: str) -> bool:
        """Whether the line is still one that may open a fence around JSON."""
        is_whole = self._fence in ("```", "```json")
        if is_whole and char == "\n":
            self._step = "body"
        elif is_whole and char in " \t":
            self._step = "after a fence's word"
        elif self._step == "fence" and "```json".startswith(self._fence + char.lower()):
            self._fence += char.lower()
        else:
            return False
        return True


class _KeyScan:
    """Walks over the start of a JSON object until the text of `response_text` begins."""

    def __init__(self) -> None:
        self._where: Literal["outside", "string", "escape", "value"] = "outside"
        self._depth = 0
        self._key = ""

    def feed(self, piece: str) -> tuple[Literal["text", "over"] | None, str]:
        """Whether the text begins in this piece, and what stands behind its quote; "over" where it will not come."""
        at = 0
        while at < len(piece):
            if self._where == "value":
                return self._value(piece[at:].lstrip())
            found = (_OUTSIDE if self._where == "outside" else _INSIDE).match(piece, at)
            assert found is not None  # either matches any character
            at = found.end()
            if self._where == "outside":
                self._outside(found[0])
                if self._depth <= 0:
                    return "over", ""
            else:
                self._inside(found[0])
        return None, ""

    def _value(self, rest: str) -> tuple[Literal["text", "over"] | None, str]:
        if not rest:
            return None, ""
        return ("text", rest[1:]) if rest[0] == '"' else ("over", "")

    def _outside(self, token: str) -> None:
        if token == '"':
            self._where = "string"
            self._key = "" if self._depth == 1 else self._key
        elif token in ("{", "["):
            self._depth += 1
        elif token in ("}", "]"):
            self._depth -= 1
        elif self._depth == 1 and token == ":" and self._key == REPLY_KEY:
            self._where = "value"  # what a top-level key is called is what stands before its colon
        elif self._depth == 1 and token == ",":
            self._key = ""

    def _inside(self, token: str) -> None:
        if self._where == "escape":
            self._where = "string"
        elif token == '"':
            self._where = "outside"
            return
        elif token == "\\":
            self._where = "escape"
        if self._depth == 1 and len(self._key) <= len(REPLY_KEY):  # a longer one is another key, whatever follows
            self._key += token[: len(REPLY_KEY) + 1]


_OUTSIDE: Final = re.compile(r'[^"{}\[\]:,]+|.', re.DOTALL)
_INSIDE: Final = re.compile(r'[^"\\]+|.', re.DOTALL)
