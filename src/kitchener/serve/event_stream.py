"""Answers a request while its turn runs: whole, or as a stream of server-sent events, until the client goes away.

It knows connections, but not the content of events. Explained in `docs/server.md`.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Final, TypeVar

import anyio
from anyio.abc import TaskGroup
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from kitchener.cancellation import ended_by, failed_alone
from kitchener.config import ServeConfig
from kitchener.serve.sendable import as_json

R = TypeVar("R")

COMMENT: Final = b": keep-alive\n\n"
KEEP_ALIVE_S: Final = 15.0
"""After this silence a stream sends a comment, so that proxies keep the connection open, seconds, as the HTML standard says."""
OPEN_STREAMS: Final = "kitchener.open_streams"
"""The key of a request's scope under which it has the `OpenStreams` of its server."""
_GRAIN: Final = 0.1
"""Shortest time between two looks at all streams, as a part of the shortest limit."""
STREAM_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # proxies that buffer would hold the text back
]


def event(data: object, *, name: str | None = None, number: int | None = None) -> bytes:
    """A server-sent event with JSON data."""
    head = (f"id: {number}\n" if number is not None else "") + (f"event: {name}\n" if name is not None else "")
    return head.encode() + b"data: " + as_json(data) + b"\n\n"


async def until_gone(receive: Receive, work: Callable[[], Awaitable[R]], gone: Callable[[], object]) -> R:
    """Returns what `work` returns.

    Args:
        receive: of the request, whose body was read
        work: what the client waits for
        gone: called if the client goes away first

    Raises:
        ClientDisconnect: the client went away
    """
    found: list[R] = []
    failed: list[BaseException] = []
    watching = anyio.CancelScope()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_watch, receive, watching, tasks)
        try:
            found.append(await work())
        except BaseException as error:  # raised again below, outside the task group, which would wrap it
            if not await failed_alone(error):
                raise
            failed.append(error)
        watching.cancel()
    if failed:
        raise failed.pop()  # so that this frame, which its traceback holds, does not hold the error
    if not found:
        gone()
        raise ClientDisconnect
    return found[0]


class EventStream:
    """An answer of server-sent events.

    The client counts as gone when it closes the connection, or leaves a piece untaken for `serve.request_timeout_s`.

    Args:
        pieces: the events as bytes
        config: the settings of the server
        gone: called if the client goes away before the end
        headers: further headers of the answer
        ready: returns when the answer can begin; what it raises can still have a status of its own
    """

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        config: ServeConfig,
        gone: Callable[[], object],
        headers: tuple[tuple[bytes, bytes], ...] = (),
        ready: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._pieces, self._config, self._gone, self._headers, self._ready = pieces, config, gone, headers, ready
        self._wrote_at = 0.0
        """When the last piece was written; of one that is being written, when that began."""
        self._is_writing = False
        self._comments = 0
        """Keep-alive comments that are being written."""
        self._send: Send
        self._tasks: TaskGroup

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events; to a request for the head alone, none."""
        if scope["method"] == "HEAD":
            await self._pieces.aclose()
            await send({"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS, *self._headers]})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        self._send, streams = send, scope[OPEN_STREAMS]
        began, finished, failed = False, False, list[BaseException]()
        watching = anyio.CancelScope()
        try:
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(_watch, receive, watching, self._tasks)
                try:
                    if self._ready is not None:
                        await self._ready()
                    began, self._wrote_at = True, anyio.current_time()
                    with streams.holding(self):
                        await self._send_all(self._headers)
                        finished = True
                        # In the same step as the last piece, so that both are one write.
                        await send({"type": "http.response.body", "body": b"", "more_body": False})
                except BaseException as error:  # raised again below, outside the task group, which would wrap it
                    if not await failed_alone(error):
                        raise
                    failed.append(error)
                watching.cancel()
                if self._comments:
                    self._tasks.cancel_scope.cancel()
        finally:
            if not finished and (began or not failed):
                self._gone()
        if failed:
            raise failed.pop()  # as in `until_gone`

    def check(self, now: float) -> float:
        """Keeps a silent stream alive, and ends one whose client takes nothing. Returns when to check again."""
        limit_s = self._config.request_timeout_s if self._is_writing else KEEP_ALIVE_S
        due = self._wrote_at + limit_s
        if due > now:
            return due
        if self._is_writing:
            self._tasks.cancel_scope.cancel()
        else:
            self._wrote_at = now
            self._comments += 1
            self._tasks.start_soon(self._write_comment)
        return now + limit_s

    async def _send_all(self, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS, *headers]})
        async with aclosing(self._pieces) as pieces:
            async for piece in pieces:
                await self._write(piece)

    async def _write(self, piece: bytes) -> None:
        self._wrote_at, self._is_writing = anyio.current_time(), True
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        self._is_writing = False

    async def _write_comment(self) -> None:
        try:
            await self._write(COMMENT)
        except BaseException as error:
            if not await failed_alone(error):
                raise
            self._tasks.cancel_scope.cancel()  # nothing can be written any more
        finally:
            self._comments -= 1


class OpenStreams:
    """The streams that are open now. One task looks after all of them.

    Args:
        config: the settings of the server
    """

    def __init__(self, config: ServeConfig) -> None:
        self._shortest_s = min(KEEP_ALIVE_S, config.request_timeout_s)
        self._open: dict[EventStream, None] = {}
        self._opened = anyio.Event()

    @contextmanager
    def holding(self, stream: EventStream) -> Iterator[None]:
        """Checks a stream while the block runs."""
        self._open[stream] = None
        self._opened.set()
        try:
            yield
        finally:
            del self._open[stream]

    async def run(self) -> None:
        """Checks the open streams until it is cancelled."""
        while True:
            while not self._open:  # a stream that is short has ended before this task is told of it
                self._opened = anyio.Event()
                await self._opened.wait()
            now = anyio.current_time()
            due = min(each.check(now) for each in list(self._open))
            await anyio.sleep_until(max(min(due, now + self._shortest_s), now + self._shortest_s * _GRAIN))


async def _watch(receive: Receive, watching: anyio.CancelScope, tasks: TaskGroup) -> None:
    """Cancels the work if the client goes away, or if its connection cannot be watched.

    Args:
        receive: of the request, whose body was read
        watching: cancelled when the work is done. The watch has a scope of its own, because a task that ends with a
            cancellation leaves a cycle on asyncio, and with it the request, to the garbage collector
        tasks: the task group of the work
    """
    with ended_by(watching):
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        except BaseException as error:
            if not await failed_alone(error):
                raise
        tasks.cancel_scope.cancel()
