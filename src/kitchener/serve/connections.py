"""Handles HTTP connections with few writes, so that no client can hold one open or keep it busy without sending requests.

Few are accepted in one step of the event loop, so that those beyond the limit are closed before there are many more. What is
written within one step becomes one write. A connection whose
request does not arrive in time is closed, and where too many are open, the one that has waited longest without a request is
closed. On asyncio, because uvicorn runs nowhere else. Explained in `docs/server.md`.
"""

import asyncio  # noqa: TID251  see above
import importlib
import select
import socket
from itertools import islice
from typing import Final, cast

from kitchener.logs import get_logger
from kitchener.serve.request_reader import RequestReader, closing_answer

_log = get_logger(__name__)
_MOST_BYTES: Final = 65_536
"""Bytes that may wait; more is written at once, so that the transport can pause the writer."""
_LEAST_TAKEN: Final = 16_384
"""Bytes that a client takes within the time for it, if so many wait."""
_OTHER_FILES: Final = 512
"""Open files that are kept for ledgers, providers and MCP servers."""
_FEWEST: Final = 16
_ACCEPTED_AT_ONCE: Final = 16
"""Connections that are accepted in one step of the event loop."""
_LOOKED_AT: Final = 16
"""Most connections to look at before one of them is closed for a new one."""
_STILL_THERE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
"""What a client has to pass over. Where its program has closed the connection, its system answers with a reset."""
_LOOK_AGAIN_S: Final = 0.5
"""Pause between two looks for that reset, seconds."""
_TOO_SLOW: Final = closing_answer("408 Request Timeout")


class JoinedWrites:
    """A transport that writes at the end of the step. All else goes to the transport that it is made of.

    It ends a connection whose client takes nothing, also one that is to be closed once all is written. Nothing else ends an
    answer that is no stream.

    Args:
        transport: of the connection
        loop: the event loop
        timeout_s: how long a client may leave what was written untaken, seconds
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        self._transport, self._loop, self._timeout_s = transport, loop, timeout_s
        self._waiting, self._bytes = list[bytes](), 0
        self._written, self._is_watched = 0, False

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
        """Writes the waiting bytes, and closes."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Ends the connection without the waiting bytes."""
        self._transport.abort()

    def flush(self) -> None:
        """Writes the waiting bytes."""
        if self._waiting:
            data = b"".join(self._waiting)
            self._waiting, self._bytes = [], 0
            if data and not self._transport.is_closing():
                self._transport.write(data)
                self._written += len(data)
                if not self._is_watched and self._transport.get_write_buffer_size():
                    self._watch()

    def _watch(self) -> None:
        left = self._transport.get_write_buffer_size()
        self._is_watched = left > 0
        if left:
            self._loop.call_later(self._timeout_s, self._check, self._written - left + min(left, _LEAST_TAKEN))

    def _check(self, due: int) -> None:
        """Ends the connection unless the client has taken the bytes up to this one."""
        if self._written - self._transport.get_write_buffer_size() < due:
            self._transport.abort()
        else:
            self._watch()


def connections_within(wanted: int) -> int:
    """How many connections may be open at once so that files are left for the ledgers.

    Raises this process's limit of open files as high as the system allows. Warns if that is too low.

    Args:
        wanted: connections
    """
    try:
        resource = importlib.import_module("resource")
    except ImportError:  # only POSIX has it
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    needed = wanted + _OTHER_FILES
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    found = min(wanted, max(_FEWEST, int(soft) - _OTHER_FILES))
    if found < wanted:
        _log.warning(
            "fewer connections than serve.max_requests needs; raise the limit of open files (LimitNOFILE, ulimit -n)",
            open_files=soft,
            needed=needed,
            connections=found,
        )
    return found


class _FewAtOnce:
    """A listening socket from which asyncio accepts few connections in one step. All else goes to the socket itself."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener, self._left = listener, _ACCEPTED_AT_ONCE

    def __getattr__(self, name: str) -> object:
        return getattr(self._listener, name)

    def accept(self) -> tuple[socket.socket, object]:
        """The next connection.

        Raises:
            BlockingIOError: no more connections are accepted in this step, or none waits
        """
        if self._left == 0:
            self._left = _ACCEPTED_AT_ONCE
            raise BlockingIOError
        self._left -= 1
        return self._listener.accept()


def few_at_once(listener: socket.socket) -> socket.socket:
    """The listener for an event loop that would accept all connections that wait before it closes one for another.

    A burst of connections would then take all files that the process may open.
    """
    return cast(socket.socket, _FewAtOnce(listener))


def connection_class(most: int, timeout_s: float, *, asks_back: bool) -> type[asyncio.Protocol]:
    """Handles the connections of one server.

    Args:
        most: connections at once
        timeout_s: how long a client may take for the head of a request, or leave what was written untaken, seconds
        asks_back: whether to find out if a client that sends no more has gone away, because its turn is then cancelled
    """
    unasked: dict[_ClientConnection, None] = {}  # those without a request so far, the one that has waited longest first
    kept: dict[_ClientConnection, None] = {}  # those that wait for their next request, in the same order

    class ServedConnection(_ClientConnection):
        _unasked, _kept, _most = unasked, kept, most
        _timeout_s, _asks_back = timeout_s, asks_back

    return ServedConnection


class _ClientConnection(RequestReader):
    _unasked: "dict[_ClientConnection, None]"
    _kept: "dict[_ClientConnection, None]"
    _most: int
    _timeout_s: float
    _asks_back: bool

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """A client has connected."""
        self._joined = JoinedWrites(transport, self.loop, self._timeout_s)
        self._head_timer: asyncio.TimerHandle | None = None
        self._is_half_closed = False
        super().connection_made(cast(asyncio.Transport, self._joined))
        if len(self.connections) >= self._most and (self._unasked or self._kept):
            idlest = self._idlest()
            idlest.connections.discard(idlest)
            idlest.stop_waiting()
            idlest.transport.close()
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self.stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A client has sent something."""
        super().data_received(data)
        if not self.is_answered or self.transport.is_closing():
            self.stop_waiting()
        elif not self.is_in_body:
            self._await_head()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio asks whether to stay open; uvicorn never does
        """A client will send no more, or has gone away; a connection does not say which. Returns whether it stays open.

        It stays open for a client that may wait for its answer, as after `nc -N`: its request is whole, and the answer has not
        begun. Most clients that go away do so during an answer, or close a connection that they do not need.
        """
        self._joined.flush()
        super().eof_received()
        if self._is_half_closed or self.transport.is_closing():  # asyncio tells it again where reading was paused
            return self._is_half_closed
        if self.is_answered or self.is_in_body or self.cycle.response_started:
            return False
        self._is_half_closed = True
        self.stop_waiting()
        if self._asks_back and self.cycle.scope["http_version"] == "1.1":
            self.transport.write(_STILL_THERE)
            self._look_if_gone()
        return True

    def _look_if_gone(self) -> None:
        """Ends the connection if the client has answered a write with a reset. Looks again later if it has not."""
        if self.transport.is_closing():
            return
        if self._events(0):  # a reset is told unasked
            self._joined.abort()
        else:
            self.loop.call_later(_LOOK_AGAIN_S, self._look_if_gone)

    def on_response_complete(self) -> None:
        """An answer is whole."""
        super().on_response_complete()
        if self._is_half_closed and (self.is_answered or self.is_in_body):  # nor is there a whole request that waits
            self.transport.close()
        if self.transport.is_closing() or not self.is_answered:
            return
        if not self.is_in_body:
            self._kept[self] = None  # uvicorn's own timer ends a connection on which nothing comes
        if self.is_in_body or self.is_in_head:  # in a body, the client continues to send bytes that nobody reads
            self._await_head()

    def refuse(self, answer: bytes) -> None:
        """Closes the connection, with an answer if the client waits for one."""
        self.stop_waiting()
        super().refuse(answer)

    def stop_waiting(self) -> None:
        """A request has come, or none will."""
        self._unasked.pop(self, None)
        self._kept.pop(self, None)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _idlest(self) -> "_ClientConnection":
        """The connection that has waited longest, unless what its client sent was not read yet.

        It is one of those that never had a request, or of those that had one, whichever are more: a flood of either kind must
        not end the connections of clients of the other. Those that come in one step of the event loop are all taken before the
        first one is read. In a burst of idle connections, the one that came first and asks for something would be closed.
        """
        waiting = max(self._unasked, self._kept, key=len)
        for each in list(islice(waiting, _LOOKED_AT)):
            if not each._has_unread():
                return each
            waiting[each] = waiting.pop(each)
        return next(iter(waiting))

    def _has_unread(self) -> bool:
        return hasattr(select, "poll") and self._events(select.POLLIN)

    def _events(self, wanted: int) -> bool:
        """Whether any of these events of the connection, or its failure, has happened."""
        descriptor = self.transport.get_extra_info("socket").fileno()
        if descriptor < 0 or not hasattr(select, "poll"):  # only POSIX has it
            return False
        asked = select.poll()
        asked.register(descriptor, wanted)
        return bool(asked.poll(0))

    def _await_head(self) -> None:
        if self._head_timer is None:
            if self not in self._kept:
                self._unasked[self] = None
            self._head_timer = self.loop.call_later(self._timeout_s, self.refuse, _TOO_SLOW)
