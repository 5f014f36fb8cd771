"""Bounds the body of an HTTP answer in size, depth and number of parts, because its sender controls it.

The body is checked while it is read and before anything parses it. The first breach of a limit closes the connection. This
module knows HTTP and JSON, but no vendor and no vendor's library. `http_client.py` applies it to every answer. Explained in
`docs/gateway.md`.
"""

import zlib
from collections.abc import Iterator
from typing import Final

import anyio.lowlevel
import httpx
import httpx2
import orjson

from kitchener.errors import ProviderReason

MAX_ERROR_BYTES: Final = 65_536
"""Most bytes that are read of an error's body. Only a few hundred characters of the text are kept."""
MAX_DEPTH: Final = 100
"""Most levels of objects and lists in a body. Parsers recurse, and a tool's arguments are stored only up to 64 levels."""
MAX_VALUES: Final = 10_000
"""Most values in a body or an event. The libraries validate each value, up to 20 µs, while no other task runs."""
MAX_COUNTED: Final = 500_000
"""Most commas and brackets of a text that is parsed to count its values. Some may be inside strings."""
MAX_EVENTS: Final = 100_000
"""Most events of one stream, not counting comments. No model's answer has that many tokens."""
MAX_EVENT_LINES: Final = 100
"""Most lines of one event. Vendors send two or three."""
PIECES_AT_ONCE: Final = 256
"""Number of pieces after which other tasks run. One read of the socket may contain ten thousand chunks of one byte."""
INFLATED_PIECE: Final = 65_536
"""Bytes to decompress at a time."""

_USAGE_KEYS: Final = ("usage", "usageMetadata")
_USAGE_HOLDERS: Final = ("message", "response")
_BEGINS_EVENTS: Final = frozenset(b"deir:")  # data, event, id, retry or a comment; no JSON text begins with one of these


class UnusableAnswer(Exception):
    """An endpoint's answer was refused.

    Attributes:
        reason: as in `ProviderError`
        detail: what is wrong and which limit was passed; quotes nothing of the answer
    """

    def __init__(self, reason: ProviderReason, detail: str) -> None:
        self.reason, self.detail = reason, detail
        super().__init__(detail)


class BoundedBody(httpx2.AsyncByteStream, httpx.AsyncByteStream):
    """The body of one response, decompressed and bounded.

    Yields a stream of events event by event, without comments, and any other body as a whole. Of an error's body it reads only
    the beginning.

    Args:
        body: the received bytes, still compressed
        encoding: the response's `Content-Encoding`
        status: the response's HTTP status
        max_bytes: limit of a body that is not an error's, both as received and decompressed
    """

    def __init__(
        self, body: httpx2.AsyncByteStream | httpx.AsyncByteStream, *, encoding: str, status: int, max_bytes: int
    ) -> None:
        self._body, self._source = body, body.__aiter__()
        self._is_error = status >= 300  # redirects are not followed
        self._max_bytes = min(max_bytes, MAX_ERROR_BYTES) if self._is_error else max_bytes
        self._is_over = False
        self._inflater = self._inflater_for(encoding)
        self._received = self._inflated = self._pieces = 0
        self._whole = bytearray()
        self._events: _Events | None = None
        self._ready: list[bytes] = []
        self._has_begun = False

    def __aiter__(self) -> "BoundedBody":
        return self

    async def __anext__(self) -> bytes:
        """Returns the next event, or once the whole body.

        Raises:
            UnusableAnswer: the body passed a limit; the connection was closed
        """
        try:
            while not self._ready and not self._is_over:
                try:
                    raw = await anext(self._source)
                except StopAsyncIteration:
                    self._end()
                else:
                    self._take(raw)
                    self._pieces += 1
                    if self._pieces % PIECES_AT_ONCE == 0:
                        await anyio.lowlevel.checkpoint()
        except UnusableAnswer:
            await self.aclose()
            if not self._is_error:
                raise
            self._finish_error()
        if self._ready:
            return self._ready.pop(0)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Returns the connection to the pool, or closes it if the body was not read to its end."""
        self._is_over = True
        close = getattr(self._source, "aclose", None)
        if close is not None:
            await close()
        await self._body.aclose()

    def _take(self, raw: bytes) -> None:
        self._received += len(raw)
        for piece in self._inflated_pieces(raw):
            self._inflated += len(piece)
            if self._received <= self._max_bytes >= self._inflated:
                self._keep(piece)
            else:
                self._keep(piece[: self._max_bytes - len(self._whole)] if self._is_error else b"")
                detail = f"the answer is longer than max_response_bytes = {self._max_bytes:,}"
                raise UnusableAnswer(
                    "malformed", f"{detail}, counted after decompression; raise the limit if such answers are expected"
                )

    def _inflated_pieces(self, raw: bytes) -> Iterator[bytes]:
        inflater = self._inflater
        if inflater is None:
            yield raw
            return
        is_over = inflater.eof and bool(raw)
        try:
            while not is_over and (piece := inflater.decompress(raw, INFLATED_PIECE)):
                yield piece
                raw = inflater.unconsumed_tail
        except zlib.error as error:
            raise UnusableAnswer("malformed", f"the answer cannot be decompressed: {error}") from error
        if is_over or inflater.unused_data:
            raise UnusableAnswer("malformed", "bytes follow the end of the answer's compressed body")
        yield b""  # received bytes count, even if they decompress to nothing

    def _keep(self, piece: bytes) -> None:
        if not self._has_begun:
            piece = piece.lstrip()
            if not piece:
                return
            self._has_begun = True
            if piece[0] in _BEGINS_EVENTS and not self._is_error:
                self._events = _Events()
        if self._events is None:
            self._whole += piece
        else:
            self._ready += self._events.take(piece)

    def _end(self) -> None:
        if self._inflater is not None and not self._inflater.eof and self._received:
            raise UnusableAnswer("malformed", "the answer ends in the middle of its compressed body")
        if self._events is not None:
            self._ready += self._events.rest()
        elif self._whole:
            check_json(self._whole)
            self._ready.append(bytes(self._whole))
        self._is_over = True

    def _finish_error(self) -> None:
        """Returns the part of an error's body that could be read. The status alone says what failed."""
        try:
            check_json(self._whole)
        except UnusableAnswer:
            return
        if self._whole:
            self._ready.append(bytes(self._whole))

    def _inflater_for(self, encoding: str) -> "zlib._Decompress | None":
        name = encoding.strip().lower()
        if name in ("gzip", "x-gzip"):
            return zlib.decompressobj(zlib.MAX_WBITS | 16)
        if name not in ("", "identity"):
            if not self._is_error:
                raise UnusableAnswer("malformed", f"the answer comes in the encoding {name[:40]!r}, which was not requested")
            self._is_over = True
        return None


class _Events:
    """Cuts a stream of server-sent events at its blank lines."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = self._number = 0
        self._ends_in_return = False

    def take(self, piece: bytes) -> list[bytes]:
        """Returns the events that this piece completes."""
        if self._ends_in_return and piece.startswith(b"\n"):
            piece = piece[1:]
        if not piece:
            return []
        self._ends_in_return = piece.endswith(b"\r")
        self._buffer += piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        events: list[bytes] = []
        while (end := self._buffer.find(b"\n\n", self._searched)) >= 0:
            event = self._checked(bytes(self._buffer[:end]))
            del self._buffer[: end + 2]
            self._searched = 0
            if event:
                events.append(event + b"\n\n")
        self._searched = max(0, len(self._buffer) - 1)
        return events

    def rest(self) -> list[bytes]:
        """Returns the bytes after the last blank line."""
        event = self._checked(bytes(self._buffer))
        self._buffer.clear()
        return [event] if event else []

    def _checked(self, event: bytes) -> bytes:
        if event.count(b"\n") >= MAX_EVENT_LINES:
            raise UnusableAnswer("malformed", f"an event of the stream has more than {MAX_EVENT_LINES} lines")
        lines = [line for line in event.split(b"\n") if line and not line.startswith(b":")]
        if not lines:
            return b""
        self._number += 1
        if self._number > MAX_EVENTS:
            raise UnusableAnswer("malformed", f"the stream has more than {MAX_EVENTS:,} events")
        check_json(b"\n".join([line.removeprefix(b"data:") for line in lines if line.startswith(b"data:")]))
        return b"\n".join(lines)


def check_json(text: bytes | bytearray) -> None:
    """Raises for a text that is costly to parse or has negative token counts. Does not check that it is valid JSON.

    Raises:
        UnusableAnswer: the text nests too deep, or has too many values or a negative count
    """
    brackets = text.count(b"[") + text.count(b"{")
    marks = brackets + text.count(b",")
    is_large, has_usage = brackets > MAX_DEPTH or marks > MAX_VALUES, b'"usage' in text
    if not is_large and not has_usage:
        return
    if marks > MAX_COUNTED:
        raise UnusableAnswer("malformed", f"the answer holds more than {MAX_COUNTED:,} commas and brackets")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if not is_large:
            return
        raise UnusableAnswer(
            "malformed", f"the answer is not valid JSON, or nests far deeper than {MAX_DEPTH} levels"
        ) from error
    if is_large:
        _check_shape(value)
    if has_usage and isinstance(value, dict):
        _check_usage(value)


def is_deeper(value: object, levels: int) -> bool:
    """Whether objects and lists nest deeper than `levels`. Does not recurse."""
    level: list[object] = [value]
    for _ in range(levels):
        level = _inside(level)
    return any(isinstance(each, dict | list) for each in level)


def _check_shape(value: object) -> None:
    level: list[object] = [value]
    depth, values = 0, 1
    while level := _inside(level):
        depth, values = depth + 1, values + len(level)
        if depth > MAX_DEPTH:
            raise UnusableAnswer("malformed", f"the answer nests deeper than {MAX_DEPTH} levels")
        if values > MAX_VALUES:
            raise UnusableAnswer("malformed", f"the answer holds more than {MAX_VALUES:,} values")


def _inside(level: list[object]) -> list[object]:
    """Returns the values inside the objects and lists among these."""
    return [
        inner
        for each in level
        if isinstance(each, dict | list)
        for inner in (each.values() if isinstance(each, dict) else each)
    ]


def _check_usage(answer: dict[str, object]) -> None:
    """Raises for negative counts. The libraries drop them, so the answer would seem to have no counts."""
    for holder in (answer, *(answer.get(name) for name in _USAGE_HOLDERS)):
        if not isinstance(holder, dict):
            continue
        rest = [(key, holder.get(key)) for key in _USAGE_KEYS]
        while rest:
            at, each = rest.pop()
            if isinstance(each, dict):
                rest += [(f"{at}.{key}", inner) for key, inner in each.items()]
            elif isinstance(each, int | float) and each < 0:
                raise UnusableAnswer("malformed", f"{at:.80} = {each!r:.40}: expected counts that are not negative")
