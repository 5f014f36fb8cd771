"""Bounds the body of an HTTP answer in size, depth and number of parts, because its sender controls it.

The body is checked while it is read. The first breach of a limit is an error, after which the caller closes the connection.
This module knows HTTP and JSON, but no vendor and no HTTP client. `chat_completions/transport.py` and `library/http_client.py`
read every answer with it. Explained in `docs/gateway.md`.
"""

import json
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Any, Final, NoReturn, TypeVar

import orjson

from kitchener.errors import ProviderReason
from kitchener.gateway.providers.endpoint_errors import named_web_page
from kitchener.gateway.providers.impossible_counts import CountCheck
from kitchener.plain_names import cut_to, quoted

MAX_ERROR_BYTES: Final = 65_536
"""Most bytes that are read of an error's body. Only a few hundred characters of the text are kept."""
MAX_DEPTH: Final = 100
"""Most levels of objects and lists in a body. Parsers recurse, and a tool's arguments are stored only up to 64 levels."""
MAX_VALUES: Final = 10_000
"""Most values in a body or an event. The libraries validate each value, and no other task runs meanwhile."""
MAX_COUNTED: Final = 500_000
"""Most commas and brackets of a text that is parsed to count its values. Some may be inside strings."""
MAX_EVENTS: Final = 100_000
"""Most events of one stream. No model's answer has that many tokens."""
MAX_COMMENTS: Final = 100_000
"""Most events of one stream that hold comments only. Gateways in front of models send a few a second while a model thinks.
Millions of them, three bytes each, would keep the processor busy."""
MAX_EVENT_LINES: Final = 100
"""Most lines of one event. Vendors send two or three."""
PIECES_AT_ONCE: Final = 256
"""Number of pieces after which other tasks run. One read of the socket may contain ten thousand chunks of one byte."""
INFLATED_PIECE: Final = 65_536
"""Bytes to decompress at a time."""
_SHORT: Final = 2 * MAX_DEPTH
"""Bytes of a JSON text that cannot nest too deep, because what is opened is closed. Most events of a stream are as short."""
_PAGE_HEAD: Final = 4_096
"""Bytes of a web page that are searched for its title."""

_BEGINS_EVENTS: Final = frozenset(b"deir:")  # data, event, id, retry or a comment; no JSON text begins with one of these


AnyBytes = TypeVar("AnyBytes", bytes, bytearray)


class UnusableAnswer(Exception):
    """An endpoint's answer was refused.

    Attributes:
        reason: as in `ProviderError`
        detail: what is wrong and which limit was passed; quotes nothing of the answer
    """

    def __init__(self, reason: ProviderReason, detail: str) -> None:
        self.reason, self.detail = reason, detail
        super().__init__(detail)


class BodyReader:
    """Decompresses and bounds the body of one response. The caller reads the bytes and passes them on.

    Gives a stream of events event by event, without comments, and any other body as a whole. Of an error's body it takes only
    the beginning.

    Args:
        encoding: the response's `Content-Encoding`
        status: the response's HTTP status
        max_bytes: limit of a body that is not an error's, both as received and decompressed
        counts: mends the counts in the body, or in each event's data, which `check_json` then sees; None if the caller parses
            it by `parsed_json`, who then gets the data of each event in place of the event

    Attributes:
        ready: events or bodies that are complete and not taken yet
        is_over: whether nothing more is read
    """

    def __init__(self, *, encoding: str, status: int, max_bytes: int, counts: CountCheck | None) -> None:
        self._is_error = status >= 300  # redirects are not followed
        self._max_bytes = min(max_bytes, MAX_ERROR_BYTES) if self._is_error else max_bytes
        self._counts = counts
        self.is_over = False
        self.ready: list[bytes] = []
        self._inflater = self._inflater_for(encoding)
        self._received = self._inflated = 0
        self._whole = bytearray()
        self._events: _Events | None = None
        self._has_begun, self._begun = False, b""

    @property
    def has_events(self) -> bool:
        """Whether the body is a stream of events."""
        return self._events is not None

    def take(self, raw: bytes) -> None:
        """Takes received bytes; what they complete is in `ready`.

        Raises:
            UnusableAnswer: the body passed a limit
        """
        try:
            self._take(raw)
        except UnusableAnswer as error:
            self._refuse(error)

    def end(self) -> None:
        """Ends the body; its rest is in `ready`.

        Raises:
            UnusableAnswer: the body passed a limit or is not whole
        """
        try:
            self._end()
        except UnusableAnswer as error:
            self._refuse(error)

    def _refuse(self, error: UnusableAnswer) -> None:
        """Raises the error, unless the body is that of an error answer, of which the beginning suffices."""
        self.is_over = True
        if not self._is_error:
            raise error
        self._finish_error()

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
            piece = (self._begun + piece).lstrip()
            self._begun = piece if len(piece) < len(BOM_UTF8) and BOM_UTF8.startswith(piece) else b""
            piece = b"" if self._begun else piece.removeprefix(BOM_UTF8).lstrip()
            if not piece:
                return
            self._has_begun = True
            if piece[0] in _BEGINS_EVENTS and not self._is_error:
                self._events = _Events(self._counts)
        if self._events is None:
            self._whole += piece
        else:
            self.ready += self._events.take(piece)

    def _end(self) -> None:
        if self._inflater is not None and not self._inflater.eof and self._received:
            raise UnusableAnswer("malformed", "the answer ends in the middle of its compressed body")
        if self._events is not None:
            self.ready += self._events.rest()
        elif self._whole:
            self.ready.append(bytes(self._whole if self._counts is None else check_json(self._whole, self._counts)))
        self.is_over = True

    def _finish_error(self) -> None:
        """Returns the part of an error's body that could be read. The status alone says what failed."""
        try:
            check_json(self._whole)
        except UnusableAnswer:
            return
        if self._whole:
            self.ready.append(bytes(self._whole))

    def _inflater_for(self, encoding: str) -> "zlib._Decompress | None":
        name = encoding.strip().lower()
        if name in ("gzip", "x-gzip"):
            return zlib.decompressobj(zlib.MAX_WBITS | 16)
        if name not in ("", "identity"):
            if not self._is_error:
                raise UnusableAnswer(
                    "malformed", f"the answer comes in the encoding {quoted(name, 40)}, which was not requested"
                )
            self.is_over = True
        return None


class _Events:
    """Cuts a stream of server-sent events at its blank lines."""

    def __init__(self, counts: CountCheck | None) -> None:
        self._counts = counts
        self._buffer = bytearray()
        self._searched = self._number = self._comments = 0
        self._ends_in_return = False

    def take(self, piece: bytes) -> list[bytes]:
        """Returns the events that this piece completes, or their data."""
        if self._ends_in_return and piece.startswith(b"\n"):
            piece, self._ends_in_return = piece[1:], False
        if not piece:
            return []
        self._ends_in_return = piece.endswith(b"\r")
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._buffer or not piece.endswith(b"\n\n"):
            self._buffer += piece
            if self._buffer.find(b"\n\n", self._searched) < 0:
                self._searched = max(0, len(self._buffer) - 1)
                return []
            piece = bytes(self._buffer)
            self._buffer.clear()
        *ended, rest = piece.split(b"\n\n")
        self._buffer += rest
        self._searched = max(0, len(rest) - 1)
        return self._checked_all(ended)

    def rest(self) -> list[bytes]:
        """Returns the bytes after the last blank line, or their data."""
        event = bytes(self._buffer)
        self._buffer.clear()
        if self._counts is not None:
            checked = self._checked(event)
            return [checked] if checked else []
        return self._checked_all([event])

    def _checked_all(self, events: list[bytes]) -> list[bytes]:
        if self._counts is not None:
            return [checked + b"\n\n" for event in events if (checked := self._checked(event))]
        found: list[bytes] = []
        for event in events:
            if event.startswith(b"data:") and b"\n" not in event:  # as nearly all are
                self._number += 1
                if self._number <= MAX_EVENTS:
                    found.append(event[5:])
                    continue
            if checked := self._checked(event):
                found.append(event_data(checked))
        return found

    def _checked(self, event: bytes) -> bytes:
        ends = event.count(b"\n")
        if ends >= MAX_EVENT_LINES:
            raise UnusableAnswer("malformed", f"an event of the stream has more than {MAX_EVENT_LINES} lines")
        whole = event
        if ends or event.startswith(b":"):
            whole = b"\n".join([line for line in event.split(b"\n") if line and not line.startswith(b":")])
        if not whole:
            self._comments += 1
            if self._comments > MAX_COMMENTS:
                raise UnusableAnswer("malformed", f"the stream has more than {MAX_COMMENTS:,} comments")
            return b""
        self._number += 1
        if self._number > MAX_EVENTS:
            raise UnusableAnswer("malformed", f"the stream has more than {MAX_EVENTS:,} events")
        if self._counts is None:
            return whole
        data = event_data(whole)
        mended = check_json(data, self._counts)
        if mended is data:
            return whole
        return b"\n".join([*(each for each in whole.split(b"\n") if not each.startswith(b"data:")), b"data: " + mended])


def event_data(event: bytes) -> bytes:
    """Returns the data of a server-sent event; that of an event `error` as JSON whose `error` it is.

    A field `error`, in which llama.cpp reported errors, is data, too.
    """
    event = event.rstrip(b"\n")
    if event.startswith(b"error:"):
        return b'{"error":%b}' % event.partition(b"\n")[0][6:]
    if b"\n" not in event:
        return event[5:] if event.startswith(b"data:") else b""
    lines = event.split(b"\n")
    data = b"\n".join([line.removeprefix(b"data:") for line in lines if line.startswith(b"data:")])
    if data and any(line.startswith(b"event:") and line[6:].strip() == b"error" for line in lines):
        is_json = data.lstrip()[:1] in (b"{", b'"')
        return b'{"error":%b}' % (data if is_json else orjson.dumps(data.decode(errors="replace").strip()))
    return data


def parsed_json(text: bytes | bytearray) -> Any:
    """Parses the body or an event of an answer, within the limits of `check_json`.

    Half a character stays in its text, because the other half may come with the next event. Whatever takes a text removes it
    (`plain_names.without_halves`).

    Raises:
        UnusableAnswer: the text is not JSON, nests too deep, or has too many values
    """
    size = len(text)
    brackets = text.count(b"[") + text.count(b"{") if size > _SHORT else 0
    marks = brackets + text.count(b",") if size > MAX_VALUES else 0  # a shorter text cannot hold too many
    if marks > MAX_COUNTED:
        raise UnusableAnswer("malformed", f"the answer holds more than {MAX_COUNTED:,} commas and brackets")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if (halved := json_with_halves(text, error)) is not None:
            return halved
        page = named_web_page(text[:_PAGE_HEAD].decode(errors="replace"))
        what = f"not valid JSON: {cut_to(error.msg, 100)}" if page is None else f"{page}, not JSON; check `base_url`"
        raise UnusableAnswer("malformed", f"the answer is {what}") from error
    if brackets > MAX_DEPTH or marks > MAX_VALUES:
        _check_shape(value)
    return value


def json_with_halves(text: bytes | bytearray, error: orjson.JSONDecodeError) -> Any:
    """Parses JSON that the fast parser refused for a lone surrogate; None: that was another error, or it has another one, too.

    Raises:
        UnusableAnswer: it nests too deep or has too many values
    """
    if "surrogate" not in error.msg:
        return None
    try:
        value = json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        return None
    _check_shape(value)
    return value


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def check_json(text: AnyBytes, counts: CountCheck | None = None) -> AnyBytes | bytes:
    """Raises for a text that is costly to parse. Does not check that it is valid JSON.

    Returns:
        the text; another one if `counts` had to mend what the answer counts

    Raises:
        UnusableAnswer: the text nests too deep, or has too many values
    """
    brackets = text.count(b"[") + text.count(b"{")
    marks = brackets + text.count(b",")
    is_large, has_usage = brackets > MAX_DEPTH or marks > MAX_VALUES, counts is not None and b'"usage' in text
    if not is_large and not has_usage:
        return text
    if marks > MAX_COUNTED:
        raise UnusableAnswer("malformed", f"the answer holds more than {MAX_COUNTED:,} commas and brackets")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if not is_large:
            return text
        raise UnusableAnswer(
            "malformed", f"the answer is not valid JSON, or nests far deeper than {MAX_DEPTH} levels"
        ) from error
    if is_large:
        _check_shape(value)
    return orjson.dumps(value) if counts is not None and isinstance(value, dict) and counts.mend(value) else text


def is_deeper(value: object, levels: int) -> bool:
    """Whether objects and lists nest deeper than `levels`. Does not recurse."""
    level: list[object] = [value]
    for _ in range(levels):
        if not level:
            return False
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
    """Returns the values one level deeper: those that the objects and lists of a level contain."""
    return [
        inner
        for each in level
        if isinstance(each, dict | list)
        for inner in (each.values() if isinstance(each, dict) else each)
    ]
