"""Turns an answer that is still growing into updates for whoever watches the turn.

Neighbours: `execution.py` feeds it what the gateway streams; `answers.py` reads the same answer once it is whole. It knows no
ledger: what it tells is provisional. Explained in `docs/work-orders.md`.
"""

import re
from typing import Final, Literal

import orjson

from kitchener.actors.answers import REPLY_KEY
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
            self._text.given = reply

    async def tool_ran(self, tool_id: str, *, is_error: bool) -> None:
        """A tool ended."""
        await self._listener(ToolRan(self._wo_id, tool_id, is_error))


class ReplyText:
    """Takes the pieces of a growing answer and gives the pieces of the reply in it.

    An answer that is a JSON object is searched for the text of its top-level `response_text`, escapes decoded; any other
    answer is the reply itself. What cannot be decided yet is held back, so what was given out once is right as long as the
    answer stays what it looked like; `given` holds all of it, for the caller to compare with the final reply.
    """

    def __init__(self) -> None:
        self.given = ""
        self._held = ""
        self._mode: Literal["undecided", "plain", "object", "text", "over"] = "undecided"
        self._scan = _KeyScan()

    def feed(self, piece: str) -> str:
        """The new text of the reply in `piece`; "" if there is none yet."""
        if self._mode == "over":
            return ""
        self._held += piece
        if self._mode == "undecided":
            self._decide()
        if self._mode == "object" and (end := self._scan.find_text(self._held)) is not None:
            self._held, self._mode = self._held[end:], "text"
        new = ""
        if self._mode == "plain":
            new, self._held = self._held, ""
        elif self._mode == "text":
            new = self._decoded()
        self.given += new
        return new

    def _decide(self) -> None:
        body = self._held.lstrip()
        if body.startswith("`"):
            if not body.startswith("```"):
                if not "```".startswith(body):
                    self._mode = "plain"
                return
            opening, newline, body = body.partition("\n")
            if not newline:
                return
            if opening.strip("`").strip().lower() not in ("", "json"):
                self._mode = "plain"
                return
            body = body.lstrip()
        if body.startswith("{"):
            self._held, self._mode = body, "object"
        elif body:
            self._mode = "plain"

    def _decoded(self) -> str:
        """The decoded part of the string at the start of what is held; an escape that is not whole stays there."""
        out: list[str] = []
        at, held = 0, self._held
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
        self._held = held[at:]
        if self._held.startswith('"'):
            self._mode = "over"
        return "".join(out)


# Plain text; or an escape; or two escapes that are the halves of one character. A first half waits for its second.
_STRING_PART: Final = re.compile(
    r'[^"\\]+'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}"
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}(?=[^\\]|\\[^u])"
    r"|\\u(?![dD][89abAB])[0-9a-fA-F]{4}"
    r"|\\[^u]"
)


class _KeyScan:
    """Walks over the start of a JSON object until the text of `response_text` begins."""

    def __init__(self) -> None:
        self._at = 0
        self._depth = 0
        self._key = ""

    def find_text(self, held: str) -> int | None:
        """The index after the opening quote of the reply's text, or None if it has not come yet."""
        while found := _TOKEN.match(held, self._at):
            token = found[0]
            first = token[0]
            if first == '"':
                # A whole string. What a top-level key is called is what stands before its colon.
                if self._depth == 1:
                    self._key = token[1:-1]
            elif first in "{[":
                self._depth += 1
            elif first in "}]":
                self._depth -= 1
            elif first == ":" and self._depth == 1 and self._key == REPLY_KEY:
                opening = _OPENING.match(held, found.end())
                if opening is None:
                    return None  # the quote may still come; the colon is looked at again
                return opening.end()
            elif first == "," and self._depth == 1:
                self._key = ""
            self._at = found.end()
        return None


_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^"{}\[\]:,]+', re.DOTALL)
_OPENING: Final = re.compile(r'\s*"')
