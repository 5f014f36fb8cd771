"""Reads the requests of one connection with httptools, each up to the answer to the one before it.

The parser is the one of Node.js. What it leaves to its user is bounded here: the length of a head, what a client sends ahead of
answers, a body in tiny chunks, which costs more for its lines than for its bytes, and what stands around the chunks of a body.
Explained in `docs/server.md`.
"""

import asyncio  # noqa: TID251  uvicorn runs nowhere else
import sys
from typing import Any, Final

import httptools
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

_PIECE_BYTES: Final = 1_024
"""Bytes that are read in one go: the requests in them, which a client may send ahead of answers, all take memory."""
_HEAD_BYTES: Final = 65_536
"""Longest head of a request, and in a body most bytes in a row that are none of it: the trailers, or the extension of a chunk.
The parser copies an unfinished line again with each piece, so a longer one would occupy the event loop."""
_FEW_BYTES: Final = 16_384
"""Bytes of a body before its chunks are too small."""
_BYTES_A_LINE: Final = 64
"""Fewest bytes for each line end in a longer body that comes in chunks."""
_ANY_LENGTH: Final = sys.maxsize
_FRAMING: Final = (b"content-length", b"transfer-encoding")


def closing_answer(status: str) -> bytes:
    """An answer without a body, after which the connection is closed.

    Args:
        status: the number and its name
    """
    return f"HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".encode()


_BAD_REQUEST: Final = closing_answer("400 Bad Request")
_LONG_HEAD: Final = closing_answer("431 Request Header Fields Too Large")


def _until_closed(app: Any, cycle: RequestResponseCycle) -> Any:
    """The application for a client that knows no chunks: an answer without a length ends with the connection."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                if not any(name == b"content-length" for name, _ in message.get("headers", ())):
                    cycle.chunked_encoding, cycle.expected_content_length = False, _ANY_LENGTH
            elif cycle.expected_content_length == _ANY_LENGTH:
                size = len(message.get("body", b""))
                cycle.expected_content_length = size + (_ANY_LENGTH if message.get("more_body") else 0)
            await send(message)

        await app(scope, receive, send_on)

    return answer


class RequestReader(HttpToolsProtocol):
    """Hands requests to the application in the order in which they came."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """A client has connected."""
        self.is_in_head = self.is_in_body = False
        """Whether a request has begun to come, and whether its head was read and its body not yet."""
        self._bytes = self._lines = 0  # read of that head or body, and line ends in it
        self._around = 0  # bytes read since the last ones of the body itself
        self._ahead = b""  # what came before the answer to an earlier request was whole
        super().connection_made(transport)

    @property
    def is_answered(self) -> bool:
        """Whether no request waits for its answer, or for the rest of it."""
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """A client has sent something."""
        if self._ahead:
            self._ahead += data
            self.flow.pause_reading()
        else:
            self._read(data)

    def on_message_begin(self) -> None:
        if not self.is_in_body:
            self.is_in_head = True
            super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header or, after the body, a trailer, which is ignored."""
        if not self.is_in_body:
            super().on_header(name, value.rstrip(b" \t"))  # the parser removes only the white space before it

    def on_headers_complete(self) -> None:
        """The head of a request is whole."""
        if not self.is_in_body:
            super().on_headers_complete()
            self.is_in_head, self.is_in_body = False, True
            self._bytes = self._lines = self._around = 0

    def on_body(self, body: bytes) -> None:
        """Some bytes of a body."""
        self._around = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is whole, but for the body of one that asks for another protocol: the parser stops before it."""
        if not (self.parser.should_upgrade() and self._framing()):
            super().on_message_complete()
            self.is_in_body, self._bytes = False, 0

    def on_response_complete(self) -> None:
        """An answer is whole."""
        super().on_response_complete()
        if self._ahead and self.is_answered and not self.transport.is_closing():
            data, self._ahead = self._ahead, b""
            self._read(data)

    def refuse(self, answer: bytes) -> None:
        """Closes the connection, with an answer if the client waits for one and nothing else can be mistaken for it."""
        if self.transport.is_closing():
            return
        if not self.is_in_body if self.is_answered else not (self.cycle.response_started or self.pipeline):
            self.transport.write(answer)
        self.transport.close()

    def _read(self, data: bytes) -> None:
        """Reads what has come, up to a request whose turn it is not yet."""
        self._unset_keepalive_if_required()
        try:
            for start in range(0, len(data), _PIECE_BYTES):
                if not (self.is_in_body or self.is_answered):
                    self._ahead = data[start:]
                    self.flow.pause_reading()
                    return
                self._parse(data[start : start + _PIECE_BYTES])
                if not self.is_in_body and self._bytes > _HEAD_BYTES:
                    self.refuse(_LONG_HEAD)
                    return
                if self.is_in_body and (self._around > _HEAD_BYTES or self._is_in_tiny_chunks()):
                    self.refuse(_BAD_REQUEST)
                    return
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            if self.is_in_body or self.is_answered:
                self.refuse(_BAD_REQUEST)
            else:
                self.cycle.keep_alive = False  # the connection ends after the answers to what were requests

    def _parse(self, piece: bytes) -> None:
        """Reads requests. One that asks for another protocol, such as WebSocket, is answered as it stands.

        The parser takes what follows such a head for the other protocol, or drops it if the connection is to be closed. A new
        parser reads it, given another head with the same length.
        """
        self._bytes, self._lines = self._bytes + len(piece), self._lines + piece.count(b"\r\n")
        self._around += len(piece)
        while piece:
            try:
                self.parser.feed_data(piece)
                break
            except httptools.HttpParserUpgrade as end:
                piece = piece[end.args[0] :]
                if self.is_in_body:
                    self.parser = httptools.HttpRequestParser(self)
                    self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % self._framing())

    def _framing(self) -> bytes:
        """The headers of the request that say how long its body is."""
        return b"".join(b"%b: %b\r\n" % each for each in self.headers if each[0] in _FRAMING)

    def _is_in_tiny_chunks(self) -> bool:
        if self._bytes <= _FEW_BYTES or self._lines * _BYTES_A_LINE <= self._bytes:
            return False
        return any(name == b"transfer-encoding" for name, _ in self.headers)

    def _should_upgrade(self) -> bool:
        return False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        super()._start_asgi_task(cycle, app if cycle.scope["http_version"] == "1.1" else _until_closed(app, cycle))
