"""Brings the updates of a running turn to its caller: to a listener that the turn awaits, or through an async iterator.

A listener is called in the middle of a turn, also by the executor. Its error ends the turn and belongs to the caller; it is no
failure of the executor. `runner.py` raises it as it was. For the iterator, the turn runs in its own task.
"""

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

from kitchener.cancellation import cut_off, ended_by, failed_alone, start_apart
from kitchener.errors import KitchenerError
from kitchener.lanes.wakeups import Wakeup, signals
from kitchener.records.turn import TurnUpdate, UpdateListener


class ListenerFailed(KitchenerError):
    """The listener of a turn raised an error. Passes through the turn, and never reaches a caller."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__("the listener of the turn failed")


def kept_apart(listener: UpdateListener) -> UpdateListener:
    """The listener of a turn, whose errors come as `ListenerFailed`."""

    async def tell(update: TurnUpdate) -> None:
        try:
            await listener(update)
        except BaseException as error:
            if not await failed_alone(error):
                raise
            raise ListenerFailed(error) from None

    return tell


class _UpdateBuffer:
    """The updates of one turn that its reader has not taken yet.

    Neither the turn nor its reader lets other tasks run unless it has to wait. Over a stream of anyio, which does, a streamed
    turn took 1,145 µs in place of 1,040 (`benchmarks.sessions --wire streamed`, see `docs/turn-costs.md`).

    Args:
        capacity: updates that wait for a slow reader while the turn goes on
    """

    def __init__(self, capacity: int) -> None:
        self._items, self._capacity, self._signal = deque[TurnUpdate](), capacity, signals()
        self.is_over = self._has_left = False
        self._news: Wakeup | None = None
        self._room: anyio.Event | None = None

    async def put(self, update: TurnUpdate) -> None:
        """Gives the reader an update, for which the tools of a turn may call it side by side. Waits while it is too slow."""
        if self._has_left:
            return
        self._items.append(update)
        self._tell_reader()
        while len(self._items) > self._capacity and not self._has_left:
            self._room = self._room or anyio.Event()
            await self._room.wait()

    def end(self) -> None:
        """Says that no more updates come."""
        self.is_over = True
        self._tell_reader()

    async def next(self) -> TurnUpdate | None:
        """Waits for the next update, and takes it; None: there are no more."""
        while not self._items:
            if self.is_over:
                return None
            self._news = Wakeup(self._signal())
            await self._news
        update = self._items.popleft()
        self._tell_turn()
        return update

    def leave(self) -> None:
        """Says that the updates are no longer read. The turn then does not wait for its reader."""
        self._has_left = True
        self._tell_turn()

    def _tell_reader(self) -> None:
        if self._news is not None:
            self._news.set()

    def _tell_turn(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None


async def streamed(
    run: Callable[[UpdateListener], Awaitable[None]], tasks: TaskGroup, capacity: int
) -> AsyncGenerator[TurnUpdate, None]:
    """Yields the updates of `run` as they happen. Leaving the iterator cancels `run`; its errors are raised here.

    Args:
        run: the turn; its argument is the function that it calls with each update
        tasks: the task group that runs the turn
        capacity: updates buffered for a slow reader; when the buffer is full, the turn waits for the reader
    """
    updates, stop, failure = _UpdateBuffer(capacity), anyio.CancelScope(), list[Exception]()

    async def work() -> None:
        try:
            with ended_by(stop):
                await run(updates.put)
        except BaseException as error:  # passed to the reader, which is another task
            if not await failed_alone(error, in_own_task=True):
                raise
            failure.append(error if isinstance(error, Exception) else cut_off("the turn", error))
        finally:
            updates.end()

    start_apart(tasks, work, "streamed turn")
    try:
        while (update := await updates.next()) is not None:
            yield update
    finally:
        updates.leave()
        if not updates.is_over:  # a cancellation describes the tasks that it concerns, which takes a while
            stop.cancel()
    if failure:
        raise failure[0]
