"""Lets one task wake one other task, once. An `anyio.Event` does this for any number of tasks.

Every work order and every turn that has to wait awaits a `Wakeup`. On asyncio a `Wakeup` uses a future of the event loop. An
`anyio.Event` would add two objects and two coroutines around that future. On other backends a `Wakeup` uses an
`anyio.Event`. The mailbox and `lane.py` use this module; it uses only anyio.
"""

from collections.abc import Callable, Generator
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
    """Whether `set` was called, even if no task waits any more."""

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


class EventSignal:
    """A `FutureLike` for any backend, based on an `anyio.Event`."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = anyio.Event()

    def done(self) -> bool:
        """Whether the event was set."""
        return self._event.is_set()

    def set_result(self, _: None, /) -> None:
        """Wakes the awaiting task."""
        self._event.set()

    def __await__(self) -> Generator[object, None, None]:
        """Returns when the event is set."""
        return self._event.wait().__await__()


def signals() -> Callable[[], FutureLike]:
    """Returns a factory of signals for the running event loop; outside of an event loop, a factory of `EventSignal`."""
    try:
        loop = current_token().native_token
    except anyio.NoEventLoopError:
        return EventSignal
    # An asyncio loop creates futures; trio's token has no such method.
    make: Callable[[], FutureLike] = getattr(loop, "create_future", EventSignal)
    return make
