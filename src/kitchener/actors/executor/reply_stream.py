"""Turns a model's streaming answer into text updates for the listener of a turn.

`execution.py` feeds it the pieces that the gateway streams; `answers.py` reads the complete answer. It knows no ledger: its
updates are provisional. Explained in `docs/work-orders.md`.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal

import orjson

from kitchener.actors.executor.answers import REPLY_KEY
from kitchener.actors.tools.results import ToolOutcome
from kitchener.records.turn import TextDelta, TextRetracted, ToolProgress, ToolRan, ToolStarted, UpdateListener


class ReplyStream:
    """Sends the text of one work order's reply to a listener. The text of all updates together is the final reply."""

    def __init__(self, wo_id: str, listener: UpdateListener) -> None:
        self._wo_id, self._listener = wo_id, listener
        self._is_object = self._is_asked = False
        self._text = ReplyText()
        self._blanks = OuterBlanks()
        self._attempt = 1

    async def begin(self, *, is_object: bool, is_asked: bool = False) -> None:
        """Retracts the text sent so far, because a new answer begins.

        Args:
            is_object: whether the reply is the `response_text` of a JSON object; False: the answer is the reply
            is_asked: whether the answer is an object that the caller asked for, whose text has no blanks around it
        """
        self._is_object, self._is_asked = is_object, is_asked
        await self.void()

    async def piece(self, attempt: int, text: str) -> None:
        """Sends the reply text in the next piece of the answer.

        Args:
            attempt: number of the gateway's attempt, from 1
            text: the piece of the answer
        """
        self._attempt = attempt
        if self._is_asked:
            text = self._blanks.without(text)
        if new := self._text.feed(text):
            await self._listener(TextDelta(self._wo_id, attempt, new))

    async def void(self) -> None:
        """Retracts the text sent so far, because the answer is restarted, is not the reply, or failed."""
        if self._text.given:
            await self._listener(TextRetracted(self._wo_id))
        self._text, self._blanks = ReplyText(is_object=self._is_object), OuterBlanks()

    async def finish(self, reply: str) -> None:
        """Sends the rest of the final reply. If the text sent so far does not match, retracts it and sends the whole reply."""
        if not reply.startswith(self._text.given):
            await self.void()
        if rest := reply[len(self._text.given) :]:
            await self._listener(TextDelta(self._wo_id, self._attempt, rest))
            self._text.note(rest)

    async def tool_started(self, tool_id: str, call: int, arguments: Mapping[str, object]) -> None:
        """Sends the update for a tool that is about to run."""
        await self._listener(ToolStarted(self._wo_id, tool_id, call, arguments))

    async def tool_progress(self, progress: ToolProgress) -> None:
        """Sends the update of a running tool."""
        await self._listener(progress)

    async def tool_ran(self, tool_id: str, call: int, arguments: Mapping[str, object], outcome: ToolOutcome) -> None:
        """Sends the update for a finished tool."""
        await self._listener(ToolRan(self._wo_id, tool_id, call, arguments, outcome.result, outcome.error))


class OuterBlanks:
    """Leaves out the blanks before and after an object whose text comes in pieces: models often end it with a line break."""

    def __init__(self) -> None:
        self._held: list[str] = []
        self._last = ""

    def without(self, piece: str) -> str:
        """Returns what to pass on: the piece, with the blanks held back before it, and without blanks that may be the last."""
        body = piece.rstrip()
        if not body:
            if self._last == "}":
                self._held.append(piece)
                return ""
            return piece if self._last else ""
        before = "".join(self._held) if self._last else ""
        body, after = (body if self._last else body.lstrip()), piece[len(body) :]
        self._last, self._held = body[-1], []
        if self._last == "}":
            self._held.append(after)
            return before + body
        return before + body + after


class ReplyText:
    """Extracts the reply from the pieces of a streaming answer. Each piece is read once.

    Args:
        is_object: whether a JSON object was asked for. The reply is then the decoded text of its top-level `response_text`, and
            text is held back until its role is certain; an answer that is no object is the reply itself. False: every answer
            is the reply itself, and each piece is passed on as it comes.
    """

    def __init__(self, *, is_object: bool = False) -> None:
        self._given: list[str] = []
        self._mode: Literal["undecided", "plain", "object", "text", "over"] = "undecided" if is_object else "plain"
        self._opening = _AnswerStart()
        self._scan = _KeyScan()
        self._escape = ""

    @property
    def given(self) -> str:
        """All reply text returned so far, for comparison with the final reply."""
        self._given = ["".join(self._given)]
        return self._given[0]

    def feed(self, piece: str) -> str:
        """Returns the new reply text in `piece`, or "" if there is none."""
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
        """Adds a piece of the reply to `given`."""
        if given:
            self._given.append(given)

    def _decoded(self, piece: str) -> str:
        """Decodes a piece of the JSON string. An incomplete escape is kept for the next piece."""
        held, at = self._escape + piece, 0
        out: list[str] = []
        while found := _STRING_PART.match(held, at):
            part = found[0]
            if part[0] == "\\":
                try:
                    part = orjson.loads(f'"{part}"')
                except orjson.JSONDecodeError:
                    self._mode = "over"  # not a valid string; the rest can come only with the final reply
                    break
            out.append(part)
            at = found.end()
        self._escape = held[at : at + _MAX_ESCAPE_CHARS]
        if self._escape.startswith('"') or len(self._escape) == _MAX_ESCAPE_CHARS:
            self._mode = "over"  # the string has ended, or holds an invalid escape
        return "".join(out)


# Plain text, an escape, or a surrogate pair of two escapes. A high surrogate waits for the escape after it.
_STRING_PART: Final = re.compile(
    r'[^"\\]+'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}"
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}(?=[^\\]|\\[^u])"
    r"|\\u(?![dD][89abAB])[0-9a-fA-F]{4}"
    r"|\\[^u]"
)
_MAX_ESCAPE_CHARS: Final = 12
"""Length of the longest escape, a surrogate pair."""


class _AnswerStart:
    """Reads the start of an answer until it is clear whether the answer is plain text or an object, with or without a fence."""

    def __init__(self) -> None:
        self._read: list[str] = []
        self._step: Literal["before", "fence", "after a fence's word", "body"] = "before"
        self._fence = ""

    def feed(self, piece: str) -> tuple[Literal["plain", "object"] | None, str]:
        """Reads the next piece of the answer.

        Returns:
            The kind of answer, or None while it is unclear, and the text left to read. For a plain answer this is the whole
            text so far; for an object it starts at the opening brace.
        """
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
        """Whether the line can still be the opening of a fence around JSON."""
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
    """Scans a JSON object until the text of the top-level `response_text` begins."""

    def __init__(self) -> None:
        self._where: Literal["outside", "string", "escape", "value"] = "outside"
        self._depth = 0
        self._key = ""

    def feed(self, piece: str) -> tuple[Literal["text", "over"] | None, str]:
        """Scans the next piece of the object.

        Returns:
            "text" and the rest of the piece after the opening quote; "over" if the text cannot come any more; None if it has
            not begun yet.
        """
        at = 0
        while at < len(piece):
            if self._where == "value":
                return self._value(piece[at:].lstrip())
            found = (_OUTSIDE if self._where == "outside" else _INSIDE).match(piece, at)
            assert found is not None  # either pattern matches any character
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
            self._where = "value"  # the string before a top-level colon is a key
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
        if self._depth == 1 and len(self._key) <= len(REPLY_KEY):  # a longer key cannot be `response_text`
            self._key += token[: len(REPLY_KEY) + 1]


_OUTSIDE: Final = re.compile(r'[^"{}\[\]:,]+|.', re.DOTALL)
_INSIDE: Final = re.compile(r'[^"\\]+|.', re.DOTALL)
