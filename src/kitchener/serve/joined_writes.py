"""Joins what is written to a connection within one step of the event loop into one write: a call of the system each costs more
than most of what is written.

On asyncio, because uvicorn runs nowhere else.
"""

import asyncio  # noqa: TID251  see above
from typing import Final, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

_MOST_BYTES: Final = 65_536
"""What may wait, bytes; more is written at once, so that the transport can hold the writer back."""


class JoinedWrites:
    """A transport that writes at the end of the step. All else goes to the transport that it is made of.

    Args:
        transport: of the connection
        loop: the event loop
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._waiting, self._bytes = list[bytes](), 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Writes at the end of the step."""
        if not self._waiting:
            self._loop.call_soon(self.flush)
        self._waiting.append(data)
        self._bytes += len(data)
        if self._bytes > _MOST_BYTES:
            self.flush()

    def close(self) -> None:
        """Writes what waits, and closes."""
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        """Writes what waits."""
        if self._waiting:
            data = b"".join(self._waiting)
            self._waiting, self._bytes = [], 0
            if data and not self._transport.is_closing():
                self._transport.write(data)


class JoiningProtocol(H11Protocol):
    """A connection whose answers take few writes."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """A client has connected."""
        self._joined = JoinedWrites(transport, self.loop)
        super().connection_made(cast(asyncio.Transport, self._joined))

    def eof_received(self) -> None:
        """A client will send no more. The connection closes with the end of this call."""
        self._joined.flush()
        super().eof_received()
