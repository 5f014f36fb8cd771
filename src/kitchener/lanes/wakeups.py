"""Lets one task wake one other task, once. An `anyio.Event` does this for any number of tasks.

Every work order and every turn that has to wait awaits a `Wakeup`. On asyncio a `Wakeup` uses a future of the event loop. An
`anyio.Event` would add two objects and two coroutines around that future. On other backends a `Wakeup` uses an
`anyio.Event`. The mailbox and `lane.py` use this module.

On asyncio a parked task can also be resumed at once, without a round of the event loop: what the event loop would do in its
next round is done by the task that wakes it. That takes two functions that asyncio documents for those who extend it.
"""

import asyncio  # noqa: TID251  a task is resumed at once where the event loop is asyncio's; elsewhere it waits for its turn
from collections.abc import Callable, Generator
from contextvars import Context
from functools import partial
from typing import Protocol

import anyio
from anyio.lowlevel import current_token


class FutureLike(Protocol):
    """An asyncio future, or an object with the same methods, that a task awaits. Cancelling the task may cancel the signal."""

    def done(self) -> bool:
        """Whether the signal was set or cancelled."""
        ...

    def set_result(self, result: None, /) -> object:
        """Wakes the awaiting task. Raises an error if the signal is done."""
        ...

    def __await__(self) -> Generator[object, None, object]:
        """Returns when the signal is set."""
        ...


class Wakeup:
    """An event that one task awaits, once, and other tasks set.

    Args:
        signal: a new signal from the factory that `signals` returns
    """

    __slots__ = ("_signal", "is_set")

    is_set: bool
    """Whether `set` was called, even if no task waits by now."""

    def __init__(self, signal: FutureLike) -> None:
        self._signal = signal
        self.is_set = False

    def set(self) -> None:
        """Wakes the waiting task. Later calls have no effect."""
        self.is_set = True
        if not self._signal.done():
            self._signal.set_result(None)

    def __await__(self) -> Generator[object, None, object]:
        """Returns when `set` was called. After a cancellation it cannot be awaited again."""
        return self._signal.__await__()


class Parking(FutureLike, Protocol):
    """A signal whose task can be resumed at once."""

    def resume(self) -> bool:
        """Wakes the awaiting task. Where the backend allows it, that task has run to its next wait when this returns.

        Returns:
            whether the calling task was cancelled meanwhile, so that it must not do more before its next wait
        """
        ...


class _ParkedFuture(asyncio.Future[None]):
    """A `Parking` on asyncio. It keeps the callback with which the awaiting task continues."""

    _waiter: tuple[Callable[[asyncio.Future[None]], object], Context] | None = None

    def add_done_callback(  # type: ignore[override]  # typed for callbacks that take futures of this class only
        self, fn: Callable[[asyncio.Future[None]], object], /, *, context: Context | None = None
    ) -> None:
        """Called by the awaiting task, with the context in which it runs."""
        if context is not None:
            self._waiter = fn, context
        super().add_done_callback(fn, context=context)

    def resume(self) -> bool:
        """Runs the awaiting task to its next wait, as the event loop would in its next round."""
        running = asyncio.current_task()
        if self._waiter is None or running is None:
            self.set_result(None)
            return False
        loop, (go_on, context), cancellations = self.get_loop(), self._waiter, running.cancelling()
        self.remove_done_callback(go_on)
        self.set_result(None)
        asyncio._leave_task(loop, running)
        try:
            context.run(go_on, self)
        finally:
            asyncio._enter_task(loop, running)
        return running.cancelling() > cancellations


class EventSignal:
    """A `Parking` for any backend, based on an `anyio.Event`."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = anyio.Event()

    def done(self) -> bool:
        """Whether the event was set."""
        return self._event.is_set()

    def set_result(self, _: None, /) -> None:
        """Wakes the awaiting task."""
        self._event.set()

    def resume(self) -> bool:
        """Wakes the awaiting task, which runs when its turn comes."""
        self._event.set()
        return False

    def __await__(self) -> Generator[object, None, None]:
        """Returns when the event is set."""
        return self._event.wait().__await__()


def signals() -> Callable[[], FutureLike]:
    """Returns a factory of signals for the running event loop; outside of an event loop, a factory of `EventSignal`."""
    # An asyncio loop creates futures; trio's token has no such method.
    make: Callable[[], FutureLike] = getattr(_running_loop(), "create_future", EventSignal)
    return make


def parkings() -> Callable[[], Parking]:
    """Returns a factory of parkings for the running event loop; outside of an event loop, a factory of `EventSignal`."""
    loop = _running_loop()
    return partial(_ParkedFuture, loop=loop) if isinstance(loop, asyncio.AbstractEventLoop) else EventSignal


def _running_loop() -> object | None:
    """The running asyncio loop, or trio's token; None: no event loop runs."""
    try:
        return current_token().native_token
    except anyio.NoEventLoopError:
        return None
