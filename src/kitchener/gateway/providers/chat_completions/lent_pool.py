"""Lends an endpoint's connections to an event loop that aiohttp does not know, such as trio's.

They belong to an asyncio event loop in a thread of its own. Each wait runs there, and is cancelled with the wait of the caller.
"""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager, suppress
from contextvars import Context, copy_context
from typing import Any, Final, Generic, Protocol, TypeVar, cast

import anyio
import anyio.to_thread
from anyio.from_thread import start_blocking_portal
from anyio.lowlevel import current_token
from typing_extensions import TypeVarTuple, Unpack

from kitchener.gateway.providers.chat_completions.http_pool import (
    Connections,
    OwnAnswer,
    OwnConnections,
    PoolTarget,
    open_own_connections,
)

_CLOSED: Final = "the connections were closed"

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Ts = TypeVarTuple("Ts")


Soon = Callable[[Callable[[], object]], object]
"""Has an event loop call something soon, from any thread."""
BodyPiece = tuple[bytes, bool]
"""What has arrived of a body, and whether the body is over. Both come together, which saves a trip between the threads."""


class _Task(Protocol[T_co]):
    """A task of asyncio."""

    def add_done_callback(self, call: Callable[[object], object], /) -> object: ...
    def cancel(self) -> object: ...
    def cancelled(self) -> bool: ...
    def exception(self) -> BaseException | None: ...
    def result(self) -> T_co: ...


class _OtherLoop(Protocol):
    """An event loop of asyncio."""

    def call_soon_threadsafe(self, call: Callable[..., object], *args: object, context: Context) -> object: ...
    def create_task(self, call: Coroutine[object, None, T]) -> _Task[T]: ...


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
        lender: that event loop
        own: its connections
    """

    def __init__(self, lender: "Lender", own: OwnConnections) -> None:
        self._lender, self._own = lender, own
        token: Any = current_token().native_token
        self._soon: Soon = token.run_sync_soon

    async def post(self, content: bytes, read_timeout_s: float | None, lines: bytes = b"") -> LentAnswer:
        """See `Connections`."""
        asked = _PostedRequest()
        try:
            answer, first = await self.wait(_begun, self._own, content, read_timeout_s, lines, asked)
        except BaseException:
            asked.is_wanted = False
            with suppress(ConnectionAbortedError):
                self._lender.soon(asked.close)
            raise
        return LentAnswer(self, answer, first)

    async def wait(self, call: Callable[[Unpack[Ts]], Coroutine[object, None, T]], *args: *Ts) -> T:
        """Returns what a call in the other thread returns. Cancelling this cancels the call."""
        errand = _Errand[T](self._soon)
        self._lender.soon(errand.start, self._lender, call, args)
        try:
            await errand.is_done.wait()
        except BaseException:
            with suppress(ConnectionAbortedError):
                self._lender.soon(errand.cancel)
            raise
        return errand.result()

    def close(self, answer: OwnAnswer) -> None:
        """Closes the connection of an answer."""
        with suppress(ConnectionAbortedError):
            self._lender.soon(answer.close)


class Lender:
    """Runs calls on an asyncio event loop in another thread, without blocking the thread that submits them.

    A portal of anyio would: its `start_task_soon` stops the calling thread until the other one has begun the task.
    """

    def __init__(self) -> None:
        self._loop = cast(_OtherLoop, current_token().native_token)
        self._context = copy_context()

    def create_task(self, call: Coroutine[object, None, T]) -> _Task[T]:
        """Begins a task; called there."""
        return self._loop.create_task(call)

    def soon(self, call: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        """Calls something there soon.

        Raises:
            ConnectionAbortedError: that event loop has ended, and the connections with it
        """
        try:
            self._loop.call_soon_threadsafe(call, *args, context=self._context)
        except RuntimeError as error:
            raise ConnectionAbortedError(_CLOSED) from error


class _Errand(Generic[T]):
    """A call that another thread makes for a task that waits here."""

    def __init__(self, soon: Soon) -> None:
        self.is_done = anyio.Event()
        self._soon = soon
        self._task: _Task[T] | None = None

    def start(self, lender: Lender, call: Callable[[Unpack[Ts]], Coroutine[object, None, T]], args: tuple[*Ts]) -> None:
        """Begins the call, in the other thread."""
        self._task = lender.create_task(call(*args))
        self._task.add_done_callback(self._tell)

    def cancel(self) -> None:
        """Ends the call, in the other thread."""
        if self._task is not None:
            self._task.cancel()

    def result(self) -> T:
        """Returns what the call returned, here, when `is_done` is set."""
        if self._task is None or self._task.cancelled():
            raise ConnectionAbortedError(_CLOSED)
        return self._task.result()

    def _tell(self, _: object) -> None:
        if self._task is not None and not self._task.cancelled():
            self._task.exception()  # else asyncio reports it where the asker has left
        with suppress(RuntimeError):  # the event loop that waited has ended
            self._soon(self.is_done.set)


@asynccontextmanager
async def open_connections(target: PoolTarget) -> AsyncIterator[Connections]:
    """Opens a pool of connections to an endpoint for the block: the event loop's own if it is asyncio's, else lent ones."""
    if hasattr(current_token().native_token, "call_soon_threadsafe"):
        async with open_own_connections(target) as own:
            yield own
        return
    stack, lender, own = await anyio.to_thread.run_sync(_open_elsewhere, target)
    try:
        yield LentConnections(lender, own)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(stack.close)


def _open_elsewhere(target: PoolTarget) -> tuple[ExitStack, Lender, OwnConnections]:
    """Starts the other thread. Returns what ends it, its event loop, and its connections."""
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal("asyncio"))
        own = stack.enter_context(portal.wrap_async_context_manager(open_own_connections(target)))
        return stack.pop_all(), portal.call(Lender), own


class _PostedRequest:
    """A request whose caller may be cancelled just as the answer arrives. Only `is_wanted` is used by two threads."""

    def __init__(self) -> None:
        self.is_wanted = True
        self.answer: OwnAnswer | None = None

    def close(self) -> None:
        """Closes the answer if it arrived before the caller was cancelled."""
        if self.answer is not None:
            self.answer.close()


async def _begun(
    own: OwnConnections, content: bytes, read_timeout_s: float | None, lines: bytes, asked: _PostedRequest
) -> tuple[OwnAnswer, BodyPiece]:
    """Sends a body. Returns the answer and the first piece of its body."""
    asked.answer = answer = await own.post(content, read_timeout_s, lines)
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
