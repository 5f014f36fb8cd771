"""Ways by which foreign bytes reach the library, each a function of one text: bodies, streams, keys, ledgers, files."""

import asyncio
import contextlib
import hashlib
import io
import zlib
from collections.abc import AsyncIterator, Callable, Iterable
from functools import cache
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import httpx2
import orjson
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

from kitchener.cli.run.message_files import Messages
from kitchener.cli.terminal.output import print_json
from kitchener.gateway.providers.bodies import event_data, parsed_json
from kitchener.gateway.providers.chat_completions.answer_reader import AnswerReader
from kitchener.gateway.providers.chat_completions.token_counts import TokenCounts
from kitchener.gateway.providers.endpoint_errors import redacted_line, told_by
from kitchener.gateway.providers.impossible_counts import CountCheck
from kitchener.gateway.providers.library.http_client import BoundedBody
from kitchener.gateway.providers.library.model_messages import response_from
from kitchener.gateway.providers.redaction import RedactedPieces, Redaction
from kitchener.ledger.disk.scan import find_line, read_blocks
from kitchener.ledger.format.checks import Follower, Verifier
from kitchener.ledger.format.lines import NO_HASH, START, BadLine, make_entry, render_batch
from kitchener.ledger.verify.recovery import check_is_crash
from kitchener.records.prompt import PromptRequest

LEDGER_ID = "L"
OPENING = f'{{"ledger_id":"{LEDGER_ID}","seq":'
_HASH = "0" * 64
FORGED = (
    f'{OPENING}7,"entry_id":"E-2026-01-01-000000000007","batch":[7,1,1],"entry_hash":"sha256:{_HASH}",'
    f'"chain_hash":"sha256:{_HASH}","entry":{{}}}}'
)
"""What has the form of a line and fits nothing."""
RECOVERY_UNITS = (OPENING, OPENING + "\n", OPENING + "}}", FORGED, FORGED + "\n", "\n", "}}", "\r\n")
RECOVERY_FRAMES = (("", ""), ("", "\n"), ("", "}}\n"))
EVENT_UNITS = (
    "\n",
    "\r",
    "\r\n",
    "data: a\n",
    "data: {}\n\n",
    "data: {}\r\r",
    ":\n\n",
    ":\n",
    "a",
    "data:",
    '{"a":',
    "[",
    "漢",
)
THOUGHT_FRAMES = (("", ""), ("<think>", ""))
THOUGHT_UNITS = ("<think>", "</think>", "<", "</think", " ", "a", "{")
EVENT_FRAMES = (("", ""), ("data: ", "\n\n"), ("data: {}\n\n", "x"))


@cache
def _loop() -> asyncio.Runner:
    return asyncio.Runner()


class _Pieces(httpx2.AsyncByteStream):
    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._size = data, size

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._data), self._size):
            yield self._data[start : start + self._size]


def body(size: int, *, encoding: str = "", status: int = 200) -> Callable[[str], object]:
    """Reads a text as the body of a response that arrives in pieces of so many bytes."""

    def read(text: str) -> object:
        data = text.encode("utf-8", "replace")
        data = zlib.compress(data, wbits=zlib.MAX_WBITS | 16) if encoding else data

        async def whole() -> list[bytes]:
            bounded = BoundedBody(
                _Pieces(data, size), encoding=encoding, status=status, max_bytes=1 << 24, counts=CountCheck("it")
            )
            return [piece async for piece in bounded]

        return _loop().run(whole())

    return read


def _reader(data: bytes, most: int = 1 << 30) -> Callable[[int, int], bytes]:
    """Reads bytes as a file that gives so many at once."""

    def read(size: int, offset: int) -> bytes:
        return data[offset : offset + min(size, most)]

    return read


def is_reading(given: Iterable[object]) -> bool:
    """Whether a function was given such a file to read."""
    return any(isinstance(each, FunctionType) and each.__module__ == __name__ and each.__name__ == "read" for each in given)


def _redaction() -> Redaction:
    redaction = Redaction()
    for key in ("aaaaaaaa", "a" * 200, "[[[[[[[[", "ab ab ab ab ab "):
        redaction.note(key)
    return redaction


def redacted_in_pieces(size: int) -> Callable[[str], object]:
    """Takes keys out of a text that arrives in pieces of so many characters."""

    def read(text: str) -> object:
        pieces = RedactedPieces(_redaction())
        shown = [pieces.take(text[start : start + size]) for start in range(0, len(text), size)]
        return "".join((*shown, pieces.rest()))

    return read


def redacted(text: str) -> object:
    """Takes keys out of a text, and sends the text as a key."""
    redaction = _redaction()
    found = redaction.is_in(text), redaction.text(text), redaction.value({text: [text]})
    redaction.note(text)
    return found


def vendor_answer(text: str) -> object:
    """Reads what a vendor's library made of an answer."""
    fields: dict[str, Any] = dict.fromkeys(PromptRequest._fields) | {"messages": (), "output_schema": {}}
    request, redaction = PromptRequest(**fields), _redaction()
    response_from(ModelResponse([TextPart(text)], model_name=text), request, "p", text, redaction)
    parts: list[TextPart | ToolCallPart] = [TextPart(text), ToolCallPart("t", text, "id")]
    return response_from(ModelResponse(parts, model_name=text), request, "p", "m", redaction)


def chat_answer(size: int) -> Callable[[str], object]:
    """Reads an answer in OpenAI's format whose text, thoughts and arguments arrive in pieces of so many characters."""

    def read(text: str) -> object:
        fields: dict[str, Any] = dict.fromkeys(PromptRequest._fields) | {"messages": (), "output_schema": {}}
        reader = AnswerReader(PromptRequest(**fields), "p", "m", _redaction(), TokenCounts("p"))
        for start in range(0, len(text), size):
            piece = text[start : start + size]
            call = {"function": {"name": "t", "arguments": piece}}
            said = {"content": piece, "reasoning": piece, "refusal": piece, "tool_calls": [call]}
            event = b"data: " + orjson.dumps({"choices": [{"delta": said}]})
            reader.take(parsed_json(event_data(event)), streams=True)
        reader.rest()
        return reader.response(is_whole=True)

    return read


def error_text(text: str) -> object:
    """Makes a short text out of what an endpoint answers in place of a reply."""
    return redacted_line(told_by(500, {"error": {"message": text}}), _redaction())


def shown_as_json(text: str) -> object:
    """Prints a text as `--json` does."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        print_json({"a": text})
    return out


def messages(path: Path) -> object:
    """Reads a file of messages."""
    read = Messages(path, max_chars=1 << 20)
    read.close()
    return read.conversations


def message_line(text: str) -> str:
    """A line of such a file."""
    return orjson.dumps({"conversation": text[:50], "message": text}).decode() + "\n"


def ledger_of(text: str) -> bytes:
    """The bytes of a ledger with an entry for each few hundred characters of a text, and one with all of it."""
    texts = [*(text[start : start + 500] for start in range(0, len(text), 500)), text]
    bodies = [
        orjson.dumps(
            {
                "entity_id": "T-1",
                "entry_type": "TURN_STARTED",
                "payload": {"text": each},
                "timestamp": "2026-01-01T00:00:00.000000+00:00",
            }
        )
        for each in texts
    ]
    entries = [
        make_entry(LEDGER_ID, seq, f"E-2026-01-01-{seq:012d}", hashlib.sha256(data).hexdigest(), data, None, None)
        for seq, data in enumerate(bodies, 1)
    ]
    return render_batch(entries, NO_HASH, 1)[0]


def right_ledger(text: str) -> object:
    """Verifies and follows a ledger that is right, a block at a time."""
    data = ledger_of(text)
    verifier, follower = Verifier(LEDGER_ID), Follower(LEDGER_ID, START)
    for block in read_blocks(_reader(data), 0, len(data)):
        verifier.feed(block)
        assert sum(1 for _ in follower.feed(block))
    verifier.end()
    return find_line(_reader(data), verifier.seq)


def wrong_ledger(text: str) -> object:
    """Verifies and follows what is no ledger."""
    data = ledger_of("a")[:-1] + text.encode("utf-8", "replace") + b"}\n"
    with contextlib.suppress(BadLine):
        Verifier(LEDGER_ID).feed(data)
    return [*Follower(LEDGER_ID, START).feed(data)]


def line_without_end(text: str) -> object:
    """Reads, a little at a time, a file that may hold no end of a line."""
    data = text.encode("utf-8", "replace")
    return [*read_blocks(_reader(data, 100), 0, len(data))]


def torn_ledger(text: str) -> None:
    """Decides whether what stands behind the last commit can be what a crash left."""
    data = f"{OPENING}1,{text}".encode("utf-8", "replace")
    volume: Any = SimpleNamespace(read=_reader(data, 1_000), finished_seq=0, damage=lambda *_: ValueError())
    check_is_crash(volume, Verifier(LEDGER_ID), BadLine("framing", "a line", "none"), len(data), 0)
