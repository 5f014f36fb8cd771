"""Wakes one task from another, once: what an `anyio.Event` does for any number of tasks, for less.

Every work order and every turn that has to wait goes to sleep on one. On asyncio it is the event loop's own future, which is
what an `anyio.Event` makes two objects and two coroutines around; other backends have their events. Neighbours: the mailbox
(`mailbox.py`) and the queue of turns (`admission.py`) above, only anyio below.
"""

from collections.abc import Callable, Generator
from typing import Any, Protocol

import anyio
from anyio.lowlevel import current_token


class Signal(Protocol):
    """What a task sleeps on: an asyncio future, or something that looks like one. Cancelling the sleeper may cancel it."""

    def done(self) -> bool:
        """Whether it was set or cancelled."""
        ...

    def set_result(self, result: None, /) -> object:
        """Wakes the sleeper; an error where it is done."""
        ...

    def __await__(self) -> Generator[Any, None, object]:
        """Returns when it is set."""
        ...


class Wakeup:
    """A call that one task waits for, by `await`, and others give with `set`. It is awaited once.

    Args:
        signal: a fresh one, of `signals()`
    """

    __slots__ = ("_signal", "is_set")

    is_set: bool
    """Whether the call was given, also if its waiter has gone."""

    def __init__(self, signal: Signal) -> None:
        self._signal = signal
        self.is_set = False

    def set(self) -> None:
        """Gives the call. A second one does nothing."""
        self.is_set = True
        if not self._signal.done():
            self._signal.set_result(None)

    def __await__(self) -> Generator[Any, None, object]:
        """Returns when the call is given, or was; being cancelled is final, also for the signal."""
        return self._signal.__await__()


class EventSignal:
    """A signal on any backend."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = anyio.Event()

    def done(self) -> bool:
        """Whether it was set."""
        return self._event.is_set()

    def set_result(self, _: None, /) -> None:
        """Wakes the sleeper."""
        self._event.set()

    def __await__(self) -> Generator[Any, None, None]:
        """Returns when it is set."""
        return self._event.wait().__await__()


def signals() -> Callable[[], Signal]:
    """What makes signals for an object that stays with one event loop; outside of one, what makes them for any."""
    try:
        loop = current_token().native_token
    except anyio.NoEventLoopError:
        return EventSignal
    # An asyncio loop makes its futures; trio's token has nothing of the kind.
    make: Callable[[], Signal] = getattr(loop, "create_future", EventSignal)
    return make
