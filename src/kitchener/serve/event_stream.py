"""Answers a request while its turn runs: whole, or as a stream of server-sent events, until the client goes away.

It knows connections, not what is said on them. Explained in `docs/server.md`.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, TypeVar

import anyio
import anyio.lowlevel
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from kitchener.config import ServeConfig
from kitchener.serve.sendable import as_json

R = TypeVar("R")

COMMENT: Final = b": keep-alive\n\n"
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
    failed: list[Exception] = []
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            await _disconnected(receive)
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        try:
            found.append(await work())
        except Exception as error:  # noqa: BLE001  raised again below, outside the task group, which would wrap it
            failed.append(error)
        tasks.cancel_scope.cancel()
    if failed:
        raise failed[0]
    if not found:
        gone()
        raise ClientDisconnect
    return found[0]


class EventStream:
    """An answer of server-sent events.

    The client counts as gone when it closes the connection, or leaves a piece untaken for `serve.write_timeout_s`.

    Args:
        pieces: the events as bytes
        config: the settings of the server
        gone: called if the client goes away before the end
        headers: further headers of the answer
    """

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        config: ServeConfig,
        gone: Callable[[], object],
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        self._pieces, self._config, self._gone, self._headers = pieces, config, gone, headers
        self._is_writing = anyio.Lock()
        self._wrote_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events."""
        finished = False
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch, receive, tasks.cancel_scope)
                tasks.start_soon(self._keep_alive, send, tasks.cancel_scope)
                await send({"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS, *self._headers]})
                async with aclosing(self._pieces) as pieces:
                    async for piece in pieces:
                        await self._write(send, piece, tasks.cancel_scope)
                finished = True
                tasks.cancel_scope.cancel()
            if finished:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if not finished:
                self._gone()

    async def _write(self, send: Send, piece: bytes, scope: anyio.CancelScope) -> None:
        async with self._is_writing:
            with anyio.move_on_after(self._config.write_timeout_s) as waiting:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            self._wrote_at = anyio.current_time()
        if waiting.cancelled_caught:
            scope.cancel()
            await anyio.lowlevel.checkpoint()

    async def _watch(self, receive: Receive, scope: anyio.CancelScope) -> None:
        await _disconnected(receive)
        scope.cancel()

    async def _keep_alive(self, send: Send, scope: anyio.CancelScope) -> None:
        self._wrote_at = anyio.current_time()
        while True:
            await anyio.sleep_until(self._wrote_at + self._config.keep_alive_s)
            if anyio.current_time() >= self._wrote_at + self._config.keep_alive_s:
                await self._write(send, COMMENT, scope)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
