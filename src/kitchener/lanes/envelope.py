"""A message on its way through a mailbox: who asked, what it waits for, and the slot for its one reply.

The mailbox makes the envelope; its asker awaits it and a worker fills it. A handler that gives items before its reply hands
them over through an `Outlet`. Explained in `docs/actors.md`.
"""

from collections.abc import Callable
from contextvars import copy_context
from typing import Generic, TypeVar

import anyio

from kitchener.lanes.calling_chain import CALLING_CHAIN
from kitchener.lanes.wakeups import EventSignal, FutureLike, Parking, Wakeup

MessageT = TypeVar("MessageT")
ReplyT = TypeVar("ReplyT")
ItemT = TypeVar("ItemT")


class Envelope(Generic[MessageT, ReplyT]):
    """A message with its asker's calling chain and the slot for its one reply. Filling the slot wakes the asker, if it waits.

    Args:
        message: what the handler gets
        origin: the subject, or another key of the lane's rotation
        begin_by: when the message must have begun, on the event loop's clock, seconds
        cost: what the lane's pacing books for the message
    """

    __slots__ = (
        "_signal",
        "asker_is_cancelled",
        "begin_by",
        "chain",
        "context",
        "cost",
        "desk",
        "error",
        "has_room",
        "is_set",
        "message",
        "origin",
        "patience",
        "reply",
        "scope",
        "stopped",
        "waits_since",
    )

    def __init__(self, message: MessageT, origin: object, begin_by: float, cost: int) -> None:
        self._signal: FutureLike | None = None
        self.is_set = False
        """Whether the reply slot is filled."""
        self.message, self.origin, self.begin_by, self.cost = message, origin, begin_by, cost
        self.chain = CALLING_CHAIN.get()
        self.context = copy_context()
        self.reply: ReplyT | None = None
        self.error: BaseException | None = None
        self.scope: anyio.CancelScope | None = None
        """The cancel scope of the worker that handles the message; None before a worker takes it."""
        self.patience: anyio.CancelScope | None = None
        """The scope that ends the asker's wait at `begin_by`. A worker that takes the message lifts its deadline."""
        self.has_room = False
        self.waits_since: float | None = None
        self.desk: Desk[MessageT, ReplyT] | None = None
        """The desk of the idle worker that was given the message; None: the message went into the queue."""
        self.asker_is_cancelled = False
        """Whether the asker was cancelled while a worker ran inside its task, so that its next wait has to end."""
        self.stopped: anyio.Event | None = None
        """Set when the handler of an abandoned message has stopped; None unless the asker waits for that."""

    def finish(self, reply: ReplyT | None = None, error: BaseException | None = None) -> None:
        """Fills the reply slot; later calls have no effect."""
        if not self.is_set:
            self.is_set = True
            self.reply, self.error = reply, error
            self.nudge()
            if self.stopped is not None:
                self.stopped.set()

    def nudge(self) -> None:
        """Wakes the asker if it waits."""
        signal = self._signal
        if signal is not None and not signal.done():
            signal.set_result(None)

    def woken(self, signal: FutureLike) -> FutureLike:
        """What the asker awaits until it is woken next: a new signal of the event loop.

        Where an idle worker replies at once nobody awaits anything, so that there is no signal before.
        """
        self._signal = signal
        return signal


class Desk(Wakeup, Generic[MessageT, ReplyT]):
    """Where a worker has its message. An idle worker sleeps at its desk until it gets a message, or is called to the queue."""

    __slots__ = ("_parking", "envelope")

    def __init__(self, parking: Parking) -> None:
        self.envelope: Envelope[MessageT, ReplyT] | None = None
        self.prepare(parking)

    def prepare(self, parking: Parking) -> None:
        """Prepares the next sleep, with a new parking of the event loop."""
        self._signal = self._parking = parking
        self.is_set = False

    def resume(self) -> bool:
        """Wakes the sleeping worker; see `Parking.resume`."""
        self.is_set = True
        return not self._parking.done() and self._parking.resume()


class Outlet(Generic[ItemT]):
    """Hands items from a handler to the asker of its message, one at a time, before the reply.

    It holds one item at most: `give` returns when the asker wants the next one, so a slow asker holds its own worker and no
    other. Each message has an outlet of its own; the mailbox binds it to the message's envelope.
    """

    __slots__ = ("_nudge", "_signal", "_taken", "items")

    def __init__(self) -> None:
        self.items: list[ItemT] = []
        """The item that the asker has not taken yet, if there is one."""
        self._nudge: Callable[[], None] | None = None
        self._signal: Callable[[], FutureLike] = EventSignal
        self._taken: Wakeup | None = None

    def bind(self, nudge: Callable[[], None], signal: Callable[[], FutureLike]) -> None:
        """Connects the outlet with its asker, before a worker takes the message."""
        self._nudge, self._signal = nudge, signal

    def release(self) -> None:
        """Drops the reference to the asker, which has left. Otherwise message, outlet and envelope would form a cycle."""
        self._nudge = None

    async def give(self, item: ItemT) -> None:
        """Gives the asker an item. Returns when the asker wants the next one; it is cancelled if the asker leaves."""
        self.items.append(item)
        self._taken = Wakeup(self._signal())
        if self._nudge is not None:
            self._nudge()
        await self._taken

    def resume(self) -> None:
        """Lets the handler continue after the item that was taken."""
        if self._taken is not None:
            self._taken.set()
