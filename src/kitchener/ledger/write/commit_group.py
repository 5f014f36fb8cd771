"""Turns commit requests of many callers into commit rounds: one write and one fsync per ledger, in a fixed order.

A group holds the ledgers of one agent class. A round cuts all their queues at one moment. Then the group's writer thread
writes and syncs each ledger, the commit record last. A durable entry of the commit record thus refers only to durable
entries. The caller that makes a round complete starts it itself, and the thread wakes the event loop once, so a turn that runs
alone pays for no task and no timer of its own. `docs/ledger.md` explains when a round starts.
"""

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from queue import SimpleQueue
from typing import Any, Final, Protocol

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint, current_token

from kitchener.cancellation import is_cancellation
from kitchener.clock import loop_clock
from kitchener.config import LedgerConfig
from kitchener.errors import LedgerWriteError
from kitchener.lanes.durations import Durations
from kitchener.lanes.wakeups import Wakeup, signals
from kitchener.ledger.format.lines import StoredEntry
from kitchener.ledger.write.storage import Storage

_CALLERS_OF_FULL_ROUND: Final = 128
"""Number of waiting callers at which a round starts, however many turns run."""
_TURNS_OF_FULL_LINGER: Final = 100
"""Number of running turns from which on a round waits for the whole of `linger_ms`; with fewer, for a share of it."""
_ROUND_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets in which rounds are counted, seconds."""

OnFailure = Callable[[LedgerWriteError], object]
Job = Callable[[], None]
"""A function that blocks, for the writer thread."""
WhenDone = Callable[[BaseException | None], None]
"""Called on the event loop with what the job raised; None: it did not. Raises nothing."""


class GroupMember(Protocol):
    """What a commit group needs of a ledger."""

    position: int
    """Number of the last entry written."""
    durable_position: int
    """Number of the last durable entry."""
    pending: list[StoredEntry]
    """The entries that are not known to be durable."""
    storage: Storage
    """Writes them, in a worker thread."""

    def settle(self) -> None:
        """Updates `durable_position` after a flush; on the event loop."""
        ...

    def poison(self, problem: str) -> None:
        """Refuses every further entry, with this problem as the reason; on the event loop."""
        ...


class _Round:
    """One commit round, from its first request until every waiting caller resumes."""

    __slots__ = ("due", "failure", "fault", "is_forced", "waiting")

    def __init__(self, due: float) -> None:
        self.due = due
        """When it starts at the latest, on the event loop's clock."""
        self.waiting: list[Wakeup] = []
        """One of each caller, also of those who were cancelled."""
        self.is_forced = False
        self.failure: LedgerWriteError | None = None
        """What its callers get; None: it has not failed."""
        self.fault: BaseException | None = None
        """An error of this program that has not been raised yet."""


_Cuts = list[tuple[GroupMember, list[StoredEntry]]]
"""The entries that a round takes of each ledger, in the order in which they become durable."""


class CommitGroup:
    """Commits several ledgers together, in rounds. Belongs to the event loop in which it is made.

    Args:
        members: the ledgers, in the order in which they become durable, the commit record last
        config: when a round starts and what durable means
        on_failure: called when a round failed, after which the ledgers of the group take no more entries; on the event loop
    """

    def __init__(self, members: Sequence[GroupMember], config: LedgerConfig, on_failure: OnFailure | None = None) -> None:
        self._members = list(members)
        self._config, self._on_failure = config, on_failure
        self._is_undurable = config.durability == "none"
        self._hosts: list[TaskGroup] = []
        self._gathering: _Round | None = None
        self._running: _Round | None = None
        self._cut: dict[GroupMember, int] = {}
        self._has_task = False
        self._alarm: anyio.CancelScope | None = None
        self._turns = 0
        self._thread = WriterThread()
        self._now, self._signal = loop_clock(), signals()
        self.rounds = Durations(_ROUND_BOUNDS)
        """How long the rounds took to write and sync, without the linger before; failed ones count too."""

    def host(self, tasks: TaskGroup) -> None:
        """Allows rounds to wait in this task group for the time when they start."""
        self._hosts.append(tasks)

    async def leave(self, member: GroupMember, tasks: TaskGroup) -> None:
        """Removes a ledger that has nothing left to commit; later rounds neither touch it nor wait in its task group."""
        self._members.remove(member)
        self._hosts.remove(tasks)
        if self._alarm is not None:
            self._alarm.cancel()  # its task ends, or continues in another task group
        if self._running is not None:
            await self._end_of(self._running)
        if not self._members:
            self.stop()

    def stop(self) -> None:
        """Ends the thread that writes, after the current round. No round follows."""
        self._thread.stop()

    def enter_turn(self) -> None:
        """Counts a turn that begins; a round may wait for one more caller."""
        self._turns += 1

    def leave_turn(self) -> None:
        """Counts a turn that ends; a round stops waiting for it."""
        self._turns -= 1
        self._start_if_ready()

    async def commit(self, *, force: bool = False) -> None:
        """Returns when everything written before is durable; the setting `durability` says what durable means.

        Cancelled while waiting: the round continues, and the caller does not learn its outcome.

        Args:
            force: start at once, and wait even if `durability` is `none`

        Raises:
            LedgerWriteError: the round failed; the ledgers of the group take no more entries
        """
        if self._is_undurable and not force:
            self.request()
            await checkpoint()  # a turn may have no other point at which it waits, and other tasks must run too
            return
        current = self._gathering
        if current is None:
            # Without a new entry, what this caller wrote is durable or in the running round.
            current = self._gather() if self._is_behind() else self._running
            if current is None:
                return
        end = self._end_of(current)
        if current is self._gathering:
            if len(current.waiting) == 1:
                current.due = min(current.due, self._due())
            if force:
                current.is_forced = True
            # Outside of turns nobody knows how many callers come in the same round of the event loop.
            if self._running is None and self._is_full(current) and (self._turns or force):
                self._start(current)
            else:
                self._watch(current)
        await end
        if current.failure is not None:
            self._raise_fault(current)
            raise LedgerWriteError(current.failure.path, current.failure.problem) from current.failure

    def request(self) -> None:
        """Requests a round within `linger_ms` if there is an entry to commit, and does not wait for it."""
        if self._gathering is None and self._is_behind():
            self._watch(self._gather())

    def _is_behind(self) -> bool:
        """Whether there are entries that are neither durable nor in the running round."""
        for member in self._members:
            if member.position > member.durable_position and member.position > self._cut.get(member, 0):
                return True
        return False

    def _gather(self) -> _Round:
        current = self._gathering = _Round(self._now() + self._config.linger_ms / 1_000)
        return current

    def _end_of(self, current: _Round) -> Wakeup:
        """What a caller awaits until a round ends."""
        end = Wakeup(self._signal())
        current.waiting.append(end)
        return end

    def _due(self) -> float:
        """The time on the event loop's clock at which a round starts, if somebody waits for it from now on."""
        share = min(self._turns / _TURNS_OF_FULL_LINGER, 1.0) if self._turns > 1 else 0.0
        return self._now() + self._config.linger_ms * share / 1_000

    def _is_full(self, current: _Round) -> bool:
        waiting = len(current.waiting)
        return waiting > 0 and (waiting >= self._turns or waiting >= _CALLERS_OF_FULL_ROUND or current.is_forced)

    def _start_if_ready(self) -> None:
        """Starts the round that gathers if it need not wait; otherwise its task does so later."""
        current = self._gathering
        if current is not None and self._running is None and (self._is_full(current) or current.due <= self._now()):
            self._start(current)

    def _watch(self, current: _Round) -> None:
        """Has a task start the round when it is due."""
        if not self._has_task:
            self._has_task = True
            self._hosts[-1].start_soon(self._run, self._hosts[-1])
        elif self._alarm is not None and current.due < self._alarm.deadline:
            self._alarm.deadline = current.due

    async def _run(self, host: TaskGroup) -> None:
        """Starts rounds that are due. Sleeps on if a round starts before, because the next one may need it soon."""
        try:
            # Shielded: callers outside this task group may wait for the round when the group is cancelled. The linger and the
            # disk bound the shield.
            with anyio.CancelScope(shield=True):
                while host in self._hosts:
                    if (running := self._running) is not None:
                        await self._end_of(running)
                        self._raise_fault(running)
                    elif (current := self._gathering) is None:
                        return
                    elif current.due <= self._now():
                        self._start(current)
                    else:
                        with anyio.CancelScope(deadline=current.due) as self._alarm:
                            await anyio.sleep_forever()
        finally:
            self._has_task, self._alarm = False, None
            if self._gathering is not None and self._hosts:
                self._watch(self._gathering)

    def _start(self, current: _Round) -> None:
        self._gathering, self._running = None, current
        # No await between the cuts, so every entry that an HO2m entry refers to is in this round or an earlier one.
        cuts = [(member, member.pending[:]) for member in self._members]
        self._cut = {member: member.position for member in self._members}
        sync, began = self._config.durability == "fsync", self._now()
        self._thread.run(lambda: _flush(cuts, sync), lambda error: self._end(current, cuts, began, error))

    def _end(self, current: _Round, cuts: _Cuts, began: float, error: BaseException | None) -> None:
        """Takes note of what a round made durable, or of its failure, and wakes everybody who waits for it.

        Called outside of any task, so it cannot start one.
        """
        for member, _ in cuts:
            member.settle()
        if error is not None:
            failure = error if isinstance(error, LedgerWriteError) else LedgerWriteError("the commit round", repr(error))
            current.failure = failure
            for member, _ in cuts:
                member.poison(f"{failure.path}, which is committed with it, failed: {failure.problem}")
            if self._on_failure is not None:
                self._on_failure(failure)
            if failure is not error:
                # A bare cancellation would end the task group that hosts the rounds without an error.
                failure.__cause__ = error
                current.fault = failure if is_cancellation(error) else error
        self.rounds.add(self._now() - began)
        self._running = None
        self._cut = {}
        for end in current.waiting:
            end.set()
        self._start_if_ready()

    def _raise_fault(self, current: _Round) -> None:
        """Ends a task group with an error of this program, since its callers only get a failure of the ledger."""
        fault, current.fault = current.fault, None
        if fault is not None and self._hosts:
            self._hosts[-1].start_soon(_raise, fault)


async def _raise(error: BaseException) -> None:
    raise error


def _flush(cuts: _Cuts, sync: bool) -> None:
    # A ledger without pending entries has nothing to write, but may have failed in another group.
    changed = [(member.storage, entries) for member, entries in cuts if entries or member.storage.problem is not None]
    try:
        for storage, entries in changed:
            storage.flush(entries, sync=sync)
    finally:
        for storage, _ in changed:
            storage.note()


@asynccontextmanager
async def plain_task_group() -> AsyncIterator[TaskGroup]:
    """A task group for rounds. An exception of its block propagates as it is, not wrapped in an exception group."""
    tasks = anyio.create_task_group()
    await tasks.__aenter__()
    try:
        yield tasks
    finally:
        await tasks.__aexit__(None, None, None)


class WriterThread:
    """A thread that does one job after the other, and wakes the event loop once for each. Make it in that event loop.

    `anyio.to_thread` runs any function in any thread; for that a call passes two rounds of the event loop, two cancel scopes
    and a limiter. A commit group always runs one known function, one call at a time, and never cancels it.

    The thread starts with the first job. The process may end while a job runs; that leaves the files as killing the process
    would.
    """

    def __init__(self) -> None:
        loop: Any = current_token().native_token  # asyncio's event loop, or trio's token
        self._soon: Callable[..., object] = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
        self._jobs = SimpleQueue[tuple[Job, WhenDone] | None]()
        self._is_running = False

    def run(self, job: Job, when_done: WhenDone) -> None:
        """Does a job in the thread, after those before it."""
        if not self._is_running:
            try:
                threading.Thread(target=_work, args=(self._jobs, self._soon), name="ledger writer", daemon=True).start()
            except RuntimeError as error:  # the system gives no further thread
                when_done(error)
                return
            self._is_running = True
        self._jobs.put((job, when_done))

    def stop(self) -> None:
        """Ends the thread after its present jobs; a later job starts a new thread."""
        if self._is_running:
            self._is_running = False
            self._jobs.put(None)


def _work(jobs: SimpleQueue[tuple[Job, WhenDone] | None], soon: Callable[..., object]) -> None:
    while (next_job := jobs.get()) is not None:
        job, when_done = next_job
        error: BaseException | None = None
        try:
            job()
        except BaseException as raised:  # noqa: BLE001  given to the event loop
            error = raised
        with suppress(RuntimeError):  # the event loop has ended, and nobody waits any more
            soon(when_done, error)
        del next_job, job, when_done, error  # while the thread waits, nothing may keep the entries alive
