"""A mailbox with a handler and askers that a test can hold, let go and look at."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import TaskGroup

from kitchener.errors import ActorStopped
from kitchener.lanes.mailbox import BACKGROUND, INTERACTIVE, Mailbox
from kitchener.lanes.worker_lane import LaneLimits
from tests.actors.time_control import settle


class GatedHandler:
    """Replies to a message with itself, once its gate is open; keeps a diary."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.cancelled: list[str] = []
        self.replied: list[str] = []
        self.running = 0
        self.most_running = 0
        self._gates: dict[str, anyio.Event] = {}

    def open(self, *messages: str) -> None:
        for message in messages:
            self.gate(message).set()

    def gate(self, message: str) -> anyio.Event:
        return self._gates.setdefault(message, anyio.Event())

    async def __call__(self, message: str) -> str:
        self.started.append(message)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.gate(message).wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled.append(message)
            raise
        finally:
            self.running -= 1
        self.replied.append(message)
        return f"reply to {message}"


class Asker:
    """One asker in a task of its own, and what became of it."""

    def __init__(self, message: str) -> None:
        self.message = message
        self.scope = anyio.CancelScope()
        self.outcome: object = None
        """The reply, the error, or "cancelled"."""

    async def ask(self, mailbox: Mailbox[str, str], lane: str = INTERACTIVE) -> None:
        with self.scope:
            try:
                self.outcome = await mailbox.ask_within(self.message, lane=lane)
            except Exception as error:  # noqa: BLE001  the outcome is looked at by the test
                self.outcome = error
        if self.scope.cancelled_caught:
            assert self.outcome is None
            self.outcome = "cancelled"


def mailbox_of(
    handler: Callable[[str], Awaitable[str]],
    *,
    concurrency: int = 1,
    capacity: int = 8,
    idle_workers: int = 256,
    max_restarts: int = 100,
    abort_grace_s: float = 60.0,
    origin: Callable[[str], object] | None = None,
) -> Mailbox[str, str]:
    return Mailbox(
        handler,
        name="the cook",
        lanes={INTERACTIVE: LaneLimits(concurrency, capacity, idle_workers), BACKGROUND: LaneLimits(1, 2)},
        max_restarts=max_restarts,
        restart_window_s=60.0,
        abort_grace_s=abort_grace_s,
        origin=origin,
    )


@asynccontextmanager
async def opened(mailbox: Mailbox[str, str]) -> AsyncIterator[TaskGroup]:
    """The mailbox open, with a task group for its askers; nothing in it may hang."""
    with anyio.fail_after(5):
        async with mailbox.open(), anyio.create_task_group() as askers:
            yield askers


async def ask_at_once(mailbox: Mailbox[str, str], askers: TaskGroup, messages: list[str]) -> list[Asker]:
    """One asker for each message, all in one tick."""
    asking = [Asker(message) for message in messages]
    for asker in asking:
        askers.start_soon(asker.ask, mailbox)
    await settle()
    return asking


async def ask_in_order(
    mailbox: Mailbox[str, str], askers: TaskGroup, messages: str | list[str], lane: str = INTERACTIVE
) -> list[Asker]:
    """One asker for each message, each in place before the next comes."""
    asking = [Asker(message) for message in messages]
    for asker in asking:
        askers.start_soon(asker.ask, mailbox, lane)
        await settle()
    return asking


def counts(mailbox: Mailbox[str, str], lane: str = INTERACTIVE) -> tuple[int, int, int]:
    found = mailbox.statistics()[lane]
    return found.running, found.waiting, found.asking_for_room


NOTHING = (0, 0, 0)


async def stopped_by(mailbox: Mailbox[str, str], body: Callable[[], Awaitable[object]]) -> ActorStopped:
    """What leaving the mailbox raises, after `body` has brought it to its end."""

    async def hold() -> None:
        async with mailbox.open():
            await body()
            await anyio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        await hold()
    [stopped] = caught.value.exceptions
    assert isinstance(stopped, ActorStopped)
    return stopped
