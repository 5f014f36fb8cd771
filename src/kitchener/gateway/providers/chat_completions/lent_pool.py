"""Lends an endpoint's connections to an event loop that aiohttp does not know, such as trio's.

An event loop of asyncio in a thread of its own has them. Each wait is handed to it, and ends with the wait of the asker.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal
from anyio.lowlevel import current_token
from typing_extensions import TypeVarTuple, Unpack

from kitchener.gateway.providers.chat_completions.http_pool import (
    Connections,
    OwnAnswer,
    OwnConnections,
    PoolTarget,
    open_own_connections,
)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


BodyPiece = tuple[bytes, bool]
"""What has arrived of a body, and whether that is the end of it: asking once more would be one more way there and back."""


class LentAnswer:
    """An answer whose connection another thread has.

    Args:
        connections: lead there
        answer: the answer there
        first: the first piece of its body
    """

    def __init__(self, connections: "LentConnections", answer: OwnAnswer, first: BodyPiece) -> None:
        self.status, self.headers = answer.status, answer.headers
        self._connections, self._answer = connections, answer
        self._first, self._is_over = first

    async def read(self) -> bytes:
        """See `HttpAnswer`."""
        piece, self._first = self._first, b""
        if not piece and not self._is_over:
            piece, self._is_over = await self._connections.wait(_piece, self._answer)
        return piece

    def is_over(self) -> bool:
        """See `HttpAnswer`."""
        return self._is_over and not self._first

    def close(self) -> None:
        """See `HttpAnswer`."""
        self._connections.close(self._answer)


class LentConnections:
    """Connections of an event loop in another thread.

    Args:
        portal: leads to that event loop
        own: its connections
    """

    def __init__(self, portal: BlockingPortal, own: OwnConnections) -> None:
        self._portal, self._own = portal, own
        token: Any = current_token().native_token
        self._soon: Callable[[Callable[[], object]], object] = token.run_sync_soon

    async def post(self, content: bytes, read_timeout_s: float | None) -> LentAnswer:
        """See `Connections`."""
        asked = _PostedRequest()
        try:
            answer, first = await self.wait(_begun, self._own, content, read_timeout_s, asked)
        except BaseException:
            asked.is_wanted = False
            self._portal.start_task_soon(asked.close)
            raise
        return LentAnswer(self, answer, first)

    async def wait(self, call: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts) -> T:
        """Returns what a call in the other thread returns. Cancelling this cancels the call."""
        future = self._portal.start_task_soon(call, *args)
        is_done = anyio.Event()
        future.add_done_callback(lambda _: self._tell(is_done))
        try:
            await is_done.wait()
        except BaseException:
            future.cancel()
            raise
        return future.result()

    def close(self, answer: OwnAnswer) -> None:
        """Closes the connection of an answer."""
        self._portal.start_task_soon(answer.close)

    def _tell(self, is_done: anyio.Event) -> None:
        with suppress(RuntimeError):  # the event loop that waited has ended
            self._soon(is_done.set)


@asynccontextmanager
async def open_connections(target: PoolTarget) -> AsyncIterator[Connections]:
    """Opens a pool of connections to an endpoint for the block: the event loop's own if it is asyncio's, else lent ones."""
    if hasattr(current_token().native_token, "call_soon_threadsafe"):
        async with open_own_connections(target) as own:
            yield own
        return
    stack, portal, own = await anyio.to_thread.run_sync(_open_elsewhere, target)
    try:
        yield LentConnections(portal, own)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(stack.close)


def _open_elsewhere(target: PoolTarget) -> tuple[ExitStack, BlockingPortal, OwnConnections]:
    """Starts the other thread. Returns what ends it, the way to it, and its connections."""
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal("asyncio"))
        own = stack.enter_context(portal.wrap_async_context_manager(open_own_connections(target)))
        return stack.pop_all(), portal, own


class _PostedRequest:
    """A request whose asker may leave in the moment in which the answer comes. Only `is_wanted` is used by two threads."""

    def __init__(self) -> None:
        self.is_wanted = True
        self.answer: OwnAnswer | None = None

    def close(self) -> None:
        """Closes the answer if it had come before the asker left."""
        if self.answer is not None:
            self.answer.close()


async def _begun(
    own: OwnConnections, content: bytes, read_timeout_s: float | None, asked: _PostedRequest
) -> tuple[OwnAnswer, BodyPiece]:
    """Sends a body. Returns the answer and the first piece of its body."""
    asked.answer = answer = await own.post(content, read_timeout_s)
    try:
        first = await _piece(answer)
    except BaseException:
        answer.close()
        raise
    if not asked.is_wanted:
        answer.close()
    return answer, first


async def _piece(answer: OwnAnswer) -> BodyPiece:
    return await answer.read(), answer.is_over()
