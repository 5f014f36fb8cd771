"""Turns commit requests of many callers into commit rounds: one write and one fsync per ledger, in a fixed order.

A group holds the ledgers of one agent class. A round cuts all their queues at one moment. Then one call in a worker thread
writes and syncs each ledger, the commit record last. A durable entry of the commit record thus refers only to durable
entries. `docs/ledger.md` explains when a round starts.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Protocol

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from kitchener.cancellation import is_cancellation, is_scope_cancelled
from kitchener.config import LedgerConfig
from kitchener.errors import LedgerWriteError
from kitchener.lanes.durations import Durations
from kitchener.ledger.format.lines import StoredEntry
from kitchener.ledger.write.storage import Storage

_CALLERS_OF_FULL_ROUND: Final = 128
"""Number of waiting callers at which a round starts, however many turns run."""
_TURNS_OF_FULL_LINGER: Final = 100
"""Number of running turns from which on a round waits for the whole of `linger_ms`; with fewer, for a share of it."""
_ROUND_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets in which rounds are counted, seconds."""


OnFailure = Callable[[LedgerWriteError], object]


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

    __slots__ = ("done", "failure", "full", "is_forced", "linger", "waiters")

    def __init__(self, due: float) -> None:
        self.linger = anyio.CancelScope(deadline=due)
        self.waiters = 0
        self.is_forced = False
        self.full = anyio.Event()
        self.done = anyio.Event()
        self.failure: LedgerWriteError | None = None


class CommitGroup:
    """Commits several ledgers together, in rounds.

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
        self._turns = 0
        self._limiter = anyio.CapacityLimiter(1)
        self.rounds = Durations(_ROUND_BOUNDS)
        """How long the rounds took to write and sync, without the linger before; failed ones count too."""

    def host(self, tasks: TaskGroup) -> None:
        """Allows rounds to run in this task group."""
        self._hosts.append(tasks)

    async def leave(self, member: GroupMember, tasks: TaskGroup) -> None:
        """Removes a ledger that has nothing left to commit; later rounds neither touch it nor run in its task group."""
        self._members.remove(member)
        self._hosts.remove(tasks)
        if self._running is not None:
            await self._running.done.wait()

    def enter_turn(self) -> None:
        """Counts a turn that begins; a round may wait for one more caller."""
        self._turns += 1

    def leave_turn(self) -> None:
        """Counts a turn that ends; a round stops waiting for it."""
        self._turns -= 1
        if self._gathering is not None and self._is_full(self._gathering):
            self._gathering.full.set()

    async def commit(self, *, force: bool = False) -> None:
        """Returns when everything written before is durable; the setting `durability` says what durable means.

        Cancelled while waiting: the round goes on, and the caller does not learn its outcome.

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
        if current is self._gathering:
            if current.waiters == 0:
                current.linger.deadline = min(current.linger.deadline, self._due())
            current.waiters += 1
            if force:
                current.is_forced = True
            if self._is_full(current):
                current.full.set()
        await current.done.wait()
        if current.failure is not None:
            raise LedgerWriteError(current.failure.path, current.failure.problem) from current.failure

    def request(self) -> None:
        """Requests a round within `linger_ms` if there is an entry to commit, and does not wait for it."""
        if self._gathering is None and self._is_behind():
            self._gather()

    def _is_behind(self) -> bool:
        """Whether there are entries that are neither durable nor in the running round."""
        for member in self._members:
            if member.position > member.durable_position and member.position > self._cut.get(member, 0):
                return True
        return False

    def _gather(self) -> _Round:
        current = self._gathering = _Round(anyio.current_time() + self._config.linger_ms / 1_000)
        if not self._has_task:
            self._spawn()
        return current

    def _due(self) -> float:
        """The time on the event loop's clock at which a round starts, if somebody waits for it from now on."""
        share = min(self._turns / _TURNS_OF_FULL_LINGER, 1.0) if self._turns > 1 else 0.0
        return anyio.current_time() + self._config.linger_ms * share / 1_000

    def _is_full(self, current: _Round) -> bool:
        waiters = current.waiters
        return waiters > 0 and (waiters >= self._turns or waiters >= _CALLERS_OF_FULL_ROUND or current.is_forced)

    def _spawn(self) -> None:
        self._has_task = True
        self._hosts[-1].start_soon(self._run, self._hosts[-1])

    async def _run(self, host: TaskGroup) -> None:
        """Runs rounds until no round is requested."""
        # Shielded: callers outside this task group may wait for the round when the group is cancelled. The linger and the
        # disk bound the shield.
        try:
            with anyio.CancelScope(shield=True):
                while self._gathering is not None and host in self._hosts:
                    await self._linger(self._gathering)
                    await self._perform()
        finally:
            self._has_task = False
            if self._gathering is not None and self._hosts:
                self._spawn()

    async def _linger(self, current: _Round) -> None:
        if not self._is_full(current) and current.linger.deadline > anyio.current_time():
            with current.linger:
                await current.full.wait()

    async def _perform(self) -> None:
        current, self._gathering = self._gathering, None
        assert current is not None
        self._running = current
        # No await between the cuts, so every entry that an HO2m entry refers to is in this round or an earlier one.
        cuts = [(member, member.pending[:]) for member in self._members]
        self._cut = {member: member.position for member in self._members}
        sync, began = self._config.durability == "fsync", anyio.current_time()
        try:
            await anyio.to_thread.run_sync(partial(_flush, cuts, sync), limiter=self._limiter)
        except LedgerWriteError as error:
            current.failure = error
        except BaseException as error:
            current.failure = LedgerWriteError("the commit round", repr(error))
            if is_cancellation(error) and not is_scope_cancelled():
                raise current.failure from error  # a bare cancellation would end the hosting task group without an error
            raise
        finally:
            for member, _ in cuts:
                member.settle()
            if current.failure is not None:
                problem = f"{current.failure.path}, which is committed with it, failed: {current.failure.problem}"
                for member, _ in cuts:
                    member.poison(problem)
                if self._on_failure is not None:
                    self._on_failure(current.failure)
            self.rounds.add(anyio.current_time() - began)
            self._running = None
            self._cut = {}
            current.done.set()


def _flush(cuts: Sequence[tuple[GroupMember, Sequence[StoredEntry]]], sync: bool) -> None:
    try:
        for member, entries in cuts:
            member.storage.flush(entries, sync=sync)
    finally:
        for member, _ in cuts:
            member.storage.note()


@asynccontextmanager
async def plain_task_group() -> AsyncIterator[TaskGroup]:
    """A task group for rounds. An exception of its block propagates as it is, not wrapped in an exception group."""
    tasks = anyio.create_task_group()
    await tasks.__aenter__()
    try:
        yield tasks
    finally:
        await tasks.__aexit__(None, None, None)
