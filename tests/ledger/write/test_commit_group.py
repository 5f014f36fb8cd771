"""Commit rounds: who shares a sync, in which order ledgers become durable, and what a failure does (docs/ledger.md)."""

import errno
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kitchener.config import LedgerConfig
from kitchener.errors import LedgerWriteError
from kitchener.ledger import LedgerClient, LedgerEntry, Ledgers, open_ledgers, verify_file
from kitchener.ledger.disk.file_ops import FileOps
from kitchener.records.index_keys import external_index_key
from tests.actors.time_control import in_stopped_time, pass_time, settle
from tests.ledger.support import FaultFS, SetClock, fact, numbers, open_ledger

NAMES = ("ho1m", "context", "ho2m")


@asynccontextmanager
async def three(
    directory: Path, ops: FileOps | None = None, *, order: tuple[str, ...] = NAMES, **config: Any
) -> AsyncIterator[Ledgers]:
    """Ledgers opened by hand in some order, over one file system."""
    settings = LedgerConfig().model_copy(update=config)  # unchecked: some lingers are longer than one may configure
    async with AsyncExitStack() as stack:
        opened: dict[str, LedgerClient] = {}
        for name in order:
            opened[name] = await stack.enter_async_context(
                LedgerClient.open(
                    directory / f"{name}.jsonl",
                    ledger_id=f"{name.upper()}:ADMIN",
                    clock=SetClock(),
                    config=settings,
                    file_ops=ops,
                )
            )
        yield Ledgers(opened["ho1m"], opened["ho2m"], opened["context"])


class HeldSync(FaultFS):
    """Syncs wait until they are let go, so that a test can see a round under way."""

    def __init__(self) -> None:
        super().__init__()
        self.holds = False
        self.arrived, self.released = threading.Semaphore(0), threading.Semaphore(0)

    def sync(self, fd: int) -> None:
        if self.holds:
            self.arrived.release()
            assert self.released.acquire(timeout=10)
        super().sync(fd)

    async def arrival(self) -> None:
        assert await anyio.to_thread.run_sync(lambda: self.arrived.acquire(timeout=10))


def writes_and_syncs(ops: FaultFS) -> list[tuple[str, str]]:
    return [(kind, name.removesuffix(".jsonl")) for kind, name in ops.log if kind in ("write", "sync")]


async def test_the_commit_record_is_written_after_what_it_rests_on_is_durable(tmp_path: Path) -> None:
    ops = FaultFS()
    async with three(tmp_path, ops) as ledgers:
        ops.log.clear()
        await ledgers.ho2m.write(fact(1))
        await ledgers.context.write(fact(1))
        await ledgers.ho1m.write(fact(1))
        await ledgers.commit()
        assert writes_and_syncs(ops) == [(kind, name) for name in NAMES for kind in ("write", "sync")]
        ops.log.clear()
        await ledgers.ho2m.write(fact(2))
        await ledgers.ho2m.commit()
        assert writes_and_syncs(ops) == [("write", "ho2m"), ("sync", "ho2m")], "the others have nothing new"


async def test_any_member_commits_the_whole_group(tmp_path: Path) -> None:
    async with three(tmp_path) as ledgers:
        await ledgers.ho1m.write(fact(1))
        await ledgers.ho2m.write(fact(1))
        await ledgers.context.commit()
        assert (ledgers.ho1m.durable_position, ledgers.ho2m.durable_position) == (1, 1)
        assert ledgers.positions() == {"HO1M:ADMIN": 1, "CONTEXT:ADMIN": 0, "HO2M:ADMIN": 1}


async def test_no_entry_of_the_commit_record_ever_stands_before_what_it_rests_on(tmp_path: Path) -> None:
    """Turns at random; after every write to HO2m, everything its entries name is in HO1m's file."""
    rests_on: dict[int, int] = {}
    broken: list[str] = []

    class Watching(FaultFS):
        def write(self, fd: int, data: bytes | memoryview) -> int:
            written = super().write(fd, data)
            if self._names[fd] == "ho2m.jsonl":
                stored = (tmp_path / "ho1m.jsonl").read_bytes().count(b"\n")
                latest = (tmp_path / "ho2m.jsonl").read_bytes().count(b"\n")
                broken.extend(
                    f"{seq} needs {rests_on[seq]}, there are {stored}" for seq in range(1, latest + 1) if rests_on[seq] > stored
                )
            return written

    async with three(tmp_path, Watching()) as ledgers:

        async def turn(number: int) -> None:
            for _ in range(5):
                await ledgers.ho1m.write(fact(number))
                if number % 3 == 0:
                    await anyio.lowlevel.checkpoint()
                rests_on[ledgers.ho2m.position + 1] = ledgers.ho1m.position
                await ledgers.ho2m.write(fact(number))
                await ledgers.commit()

        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(turn, number)
    assert broken == []
    assert len(rests_on) == 200


async def test_callers_who_come_together_share_one_sync(tmp_path: Path) -> None:
    ops = FaultFS()
    async with open_ledger(tmp_path / "l.jsonl", file_ops=ops) as ledger:
        ops.log.clear()

        async def write(number: int) -> None:
            await ledger.write(fact(number))
            await ledger.commit()
            assert ledger.durable_position >= number

        async with anyio.create_task_group() as tasks:
            for number in range(1, 51):
                tasks.start_soon(write, number)
        assert writes_and_syncs(ops) == [("write", "l"), ("sync", "l")]
        assert ledger.durable_position == 50


async def test_who_comes_while_a_round_is_under_way_shares_the_next(tmp_path: Path) -> None:
    ops = HeldSync()
    async with open_ledger(tmp_path / "l.jsonl", file_ops=ops) as ledger:
        ops.holds = True
        async with anyio.create_task_group() as tasks:
            await ledger.write(fact(1))
            tasks.start_soon(ledger.commit)
            await ops.arrival()
            for number in range(2, 12):
                await ledger.write(fact(number))
                tasks.start_soon(ledger.commit)
            await anyio.wait_all_tasks_blocked()
            ops.holds = False
            ops.released.release()
        assert [line.partition(b'"batch":')[2][:7] for line in (tmp_path / "l.jsonl").read_bytes().splitlines()] == [
            b"[1,1,1]",
            *(f"[2,{n},10"[:7].encode() for n in range(1, 11)),
        ]


async def test_a_caller_whose_entries_are_under_way_waits_for_that_round_only(tmp_path: Path) -> None:
    ops = HeldSync()
    async with open_ledger(tmp_path / "l.jsonl", file_ops=ops) as ledger:
        ops.log.clear()
        ops.holds = True
        async with anyio.create_task_group() as tasks:
            await ledger.write(fact(1))
            tasks.start_soon(ledger.commit)
            await ops.arrival()
            tasks.start_soon(ledger.commit)
            await anyio.wait_all_tasks_blocked()
            ops.released.release()
        ops.holds = False
        assert writes_and_syncs(ops) == [("write", "l"), ("sync", "l")]


async def test_nothing_new_needs_no_round(tmp_path: Path) -> None:
    ops = FaultFS()
    async with three(tmp_path, ops) as ledgers:
        await ledgers.ho1m.write(fact(1))
        await ledgers.commit()
        ops.log.clear()
        await ledgers.commit()
        ledgers.request_commit()
        await anyio.wait_all_tasks_blocked()
        assert ops.log == []


async def test_a_requested_round_runs_although_nobody_waits(tmp_path: Path) -> None:
    ops = HeldSync()
    async with open_ledger(tmp_path / "l.jsonl", file_ops=ops) as ledger:
        await ledger.write(fact(1))
        ops.holds = True
        ledger.request_commit()
        await ops.arrival()
        ops.holds = False
        ops.released.release()
        with anyio.fail_after(10):
            while ledger.durable_position < 1:
                await anyio.lowlevel.checkpoint()


async def test_a_round_waits_for_as_many_callers_as_turns_run(tmp_path: Path) -> None:
    """With a linger that no test outlasts: the last of three turns starts the round, or the end of the others does."""
    ops = FaultFS()
    async with three(tmp_path, ops, linger_ms=6_000_000) as ledgers, anyio.create_task_group() as tasks:
        for _ in range(3):
            ledgers.enter_turn()
        ops.log.clear()
        for number in range(2):
            await ledgers.ho2m.write(fact(number))
            tasks.start_soon(ledgers.commit)
        await anyio.wait_all_tasks_blocked()
        assert writes_and_syncs(ops) == []
        await ledgers.ho2m.write(fact(2))
        await ledgers.commit()
        assert writes_and_syncs(ops) == [("write", "ho2m"), ("sync", "ho2m")]

        await ledgers.ho2m.write(fact(3))
        tasks.start_soon(ledgers.commit)
        await anyio.wait_all_tasks_blocked()
        assert ledgers.ho2m.durable_position == 3
        ledgers.leave_turn()
        ledgers.leave_turn()
        with anyio.fail_after(10):
            while ledgers.ho2m.durable_position < 4:
                await anyio.lowlevel.checkpoint()
        ledgers.leave_turn()


async def test_a_round_starts_when_enough_callers_wait_however_many_turns_run(tmp_path: Path) -> None:
    async with three(tmp_path, linger_ms=6_000_000) as ledgers:
        for _ in range(500):
            ledgers.enter_turn()
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for number in range(128):
                    await ledgers.ho2m.write(fact(number))
                    tasks.start_soon(ledgers.commit)


async def test_a_round_that_stays_alone_starts_after_its_linger(tmp_path: Path) -> None:
    async with three(tmp_path, linger_ms=1) as ledgers:
        for _ in range(50):
            ledgers.enter_turn()
        await ledgers.ho2m.write(fact(1))
        with anyio.fail_after(10):
            await ledgers.commit()
        assert ledgers.ho2m.durable_position == 1


async def test_a_round_that_nobody_waits_for_takes_the_next_caller_along(tmp_path: Path) -> None:
    """What a turn requests at its start, and what it waits for at its end, is one write and one sync if the turn is short."""
    ops = FaultFS()
    async with three(tmp_path, ops, linger_ms=6_000_000) as ledgers:
        ledgers.enter_turn()
        ops.log.clear()
        await ledgers.ho2m.write(fact(1))
        ledgers.request_commit()
        await anyio.wait_all_tasks_blocked()
        assert writes_and_syncs(ops) == []
        await ledgers.ho2m.write(fact(2))
        with anyio.fail_after(10):
            await ledgers.commit()
        assert writes_and_syncs(ops) == [("write", "ho2m"), ("sync", "ho2m")]
        ledgers.leave_turn()


async def test_a_round_that_gathers_during_another_starts_when_it_is_due(tmp_path: Path) -> None:
    """At the end of the first, its caller has waited for less than its linger, and other turns go on without a commit."""
    ops = HeldSync()
    async with three(tmp_path, ops, linger_ms=1_000) as ledgers, anyio.create_task_group() as tasks:
        await ledgers.ho2m.write(fact(1))
        ops.holds = True
        tasks.start_soon(ledgers.commit)
        await ops.arrival()
        for _ in range(20):
            ledgers.enter_turn()
        await ledgers.ho2m.write(fact(2))
        tasks.start_soon(ledgers.commit)
        await anyio.wait_all_tasks_blocked()
        ops.holds = False
        ops.released.release()
        with anyio.fail_after(10):
            while ledgers.ho2m.durable_position < 2:
                await anyio.lowlevel.checkpoint()


async def test_the_only_turn_has_one_round_with_what_it_requested(tmp_path: Path) -> None:
    """Nobody can join its round, so it starts at once; the request of its start is part of it."""
    ops, passed = HeldSync(), list[int]()
    async with three(tmp_path, ops) as ledgers, anyio.create_task_group() as tasks:
        ledgers.enter_turn()
        await ledgers.ho2m.write(fact(1))
        ledgers.request_commit()
        await ledgers.ho2m.write(fact(2))
        ops.holds = True

        async def end_turn() -> None:
            await ledgers.commit()
            ledgers.leave_turn()

        async def pass_by() -> None:
            assert await anyio.to_thread.run_sync(lambda: ops.arrived.acquire(timeout=10))
            passed.append(ledgers.ho2m.durable_position)
            ops.holds = False
            ops.released.release()

        tasks.start_soon(end_turn)
        tasks.start_soon(pass_by)
    assert passed == [0]
    assert [line.partition(b'"batch":')[2][:7] for line in (tmp_path / "ho2m.jsonl").read_bytes().splitlines()] == [
        b"[1,1,2]",
        b"[1,2,2]",
    ]


async def test_the_thread_that_writes_ends_with_its_ledgers(tmp_path: Path) -> None:
    def writers() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "ledger writer"}

    before = writers()
    async with three(tmp_path) as ledgers:
        assert writers() == before, "nothing was written yet"
        await ledgers.ho1m.write(fact(1))
        await ledgers.commit()
        (mine,) = writers() - before
    await anyio.to_thread.run_sync(mine.join, 10)
    assert not mine.is_alive()


@in_stopped_time
@pytest.mark.parametrize(("turns", "share_s"), [(1, 0), (10, 10), (500, 95)])
async def test_a_caller_shortens_the_wait_of_a_requested_round_to_its_own(tmp_path: Path, turns: int, share_s: float) -> None:
    """A request alone lingers for 100 s; a caller after 5 s for a second for each running turn, and not beyond the 100 s."""
    async with three(tmp_path, linger_ms=100_000) as ledgers, anyio.create_task_group() as tasks:
        for _ in range(turns + 1):
            ledgers.enter_turn()
        ledgers.leave_turn()
        await ledgers.ho2m.write(fact(1))
        ledgers.request_commit()
        await settle()
        pass_time(5)
        await settle()
        assert ledgers.ho2m.durable_position == 0
        tasks.start_soon(ledgers.commit)
        await settle()
        if share_s:
            pass_time(share_s - 0.1)
            await settle()
            assert ledgers.ho2m.durable_position == 0
            pass_time(0.2)
        while ledgers.ho2m.durable_position < 1:
            await anyio.lowlevel.checkpoint()


@in_stopped_time
async def test_a_requested_round_that_nobody_joins_starts_after_the_linger(tmp_path: Path) -> None:
    async with three(tmp_path, linger_ms=100_000) as ledgers:
        await ledgers.ho2m.write(fact(1))
        ledgers.request_commit()
        await settle()
        pass_time(99.9)
        await settle()
        assert ledgers.ho2m.durable_position == 0
        pass_time(0.2)
        while ledgers.ho2m.durable_position < 1:
            await anyio.lowlevel.checkpoint()


async def test_a_cancelled_caller_does_not_cancel_the_commit(tmp_path: Path) -> None:
    ops = HeldSync()
    async with open_ledger(tmp_path / "l.jsonl", file_ops=ops) as ledger:
        ops.holds = True
        await ledger.write(fact(1))
        async with anyio.create_task_group() as tasks:
            scope = anyio.CancelScope()

            async def impatient() -> None:
                with scope:
                    await ledger.commit()

            tasks.start_soon(impatient)
            await ops.arrival()
            scope.cancel()
        assert scope.cancelled_caught, "its outcome is unknown, not failed"
        assert ledger.durable_position == 0
        ops.holds = False
        ops.released.release()
        await ledger.commit()
        assert ledger.durable_position == 1
    assert verify_file(tmp_path / "l.jsonl").ok


async def test_a_cancelled_owner_leaves_a_round_to_finish_for_the_others(tmp_path: Path) -> None:
    """The round runs in the task group of a ledger whose owner is cancelled; what was pending is durable all the same."""
    ops = HeldSync()
    opened = anyio.Event()
    async with anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()

        async def own() -> None:
            with scope:
                async with open_ledger(tmp_path / "l.jsonl", file_ops=ops) as ledger:
                    await ledger.write(fact(1))
                    ops.holds = True
                    ledger.request_commit()
                    opened.set()
                    await anyio.sleep(60)

        tasks.start_soon(own)
        await opened.wait()
        await ops.arrival()
        scope.cancel()
        ops.holds = False
        ops.released.release()
    assert verify_file(tmp_path / "l.jsonl").entries == 1


@pytest.mark.parametrize("order", [NAMES, NAMES[::-1], ("ho2m", "ho1m", "context")])
async def test_ledgers_may_be_opened_and_closed_in_any_order(tmp_path: Path, order: tuple[str, ...]) -> None:
    async with three(tmp_path, order=order) as ledgers:
        for name in NAMES:
            await getattr(ledgers, name).write(fact(1))
    assert [verify_file(tmp_path / f"{name}.jsonl").entries for name in NAMES] == [1, 1, 1]


async def test_what_is_left_of_a_group_goes_on_when_a_member_closes(tmp_path: Path) -> None:
    def opened(name: str) -> Any:
        return LedgerClient.open(tmp_path / f"{name}.jsonl", ledger_id=name, clock=SetClock())

    async with opened("ho1m") as ho1m, opened("ho2m") as ho2m:
        async with opened("context") as context:
            ledgers = Ledgers(ho1m, ho2m, context)
            await context.write(fact(1))
            await ho2m.write(fact(1))
        assert ho2m.durable_position == 1
        await ho2m.write(fact(2))
        await ledgers.commit()
        assert ho2m.durable_position == 2


async def test_a_shared_ledger_is_committed_by_both_of_its_groups(tmp_path: Path) -> None:
    """Memory is shared by agent classes: each class's commit covers it, and none is written twice."""
    async with AsyncExitStack() as stack:

        async def opened(name: str) -> LedgerClient:
            path = tmp_path / f"{name}.jsonl"
            return await stack.enter_async_context(LedgerClient.open(path, ledger_id=name, clock=SetClock()))

        shared = await opened("shared")
        groups = [
            Ledgers(await opened(f"ho1m{n}"), await opened(f"ho2m{n}"), await opened(f"context{n}"), also=[shared])
            for n in range(2)
        ]

        async def turn(group: Ledgers) -> None:
            for number in range(30):
                await shared.write(fact(number))
                written = shared.position
                await group.ho2m.write(fact(number))
                await group.commit()
                assert shared.durable_position >= written
            await shared.write(fact(99))
            await shared.commit()

        async with anyio.create_task_group() as tasks:
            for group in groups:
                tasks.start_soon(turn, group)
        assert set(groups[0].positions()) == {"ho1m0", "context0", "shared", "ho2m0"}
        assert await numbers(shared.read()) == list(range(1, 63))
    assert verify_file(tmp_path / "shared.jsonl").entries == 62


async def test_a_round_takes_nothing_for_durable_that_another_group_is_still_syncing(tmp_path: Path) -> None:
    class Gates(FaultFS):
        """Syncs of these files wait until they are let go."""

        def __init__(self) -> None:
            super().__init__()
            self.gates: dict[str, tuple[threading.Event, threading.Event]] = {}

        def sync(self, fd: int) -> None:
            if self._names[fd] in self.gates:
                arrived, released = self.gates[self._names[fd]]
                arrived.set()
                assert released.wait(10)
            super().sync(fd)

    ops = Gates()
    async with AsyncExitStack() as stack:

        async def opened(name: str) -> LedgerClient:
            path = tmp_path / f"{name}.jsonl"
            return await stack.enter_async_context(LedgerClient.open(path, ledger_id=name, clock=SetClock(), file_ops=ops))

        shared = await opened("shared")
        one, two = [
            Ledgers(await opened(f"ho1m{n}"), await opened(f"ho2m{n}"), await opened(f"context{n}"), also=[shared])
            for n in range(2)
        ]
        await shared.write(fact(1))
        await one.ho2m.write(fact(1))
        ops.gates = {name: (threading.Event(), threading.Event()) for name in ("ho2m0.jsonl", "shared.jsonl")}
        ops.gates["shared.jsonl"][1].set()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.commit)
            assert await anyio.to_thread.run_sync(ops.gates["ho2m0.jsonl"][0].wait, 10)
            ops.gates["shared.jsonl"] = (threading.Event(), threading.Event())
            await shared.write(fact(2))
            tasks.start_soon(two.commit)
            assert await anyio.to_thread.run_sync(ops.gates["shared.jsonl"][0].wait, 10)
            ops.gates["ho2m0.jsonl"][1].set()
            with anyio.fail_after(10):
                while one.ho2m.durable_position < 1:
                    await anyio.lowlevel.checkpoint()
            assert (shared.position, shared.durable_position) == (2, 1)
            ops.gates["shared.jsonl"][1].set()
        assert shared.durable_position == 2
        ops.gates = {}


@pytest.mark.parametrize("failing", NAMES)
@pytest.mark.parametrize("kind", ["write", "sync"])
async def test_a_failure_of_one_ledger_stops_the_group_and_is_never_retried(tmp_path: Path, failing: str, kind: str) -> None:
    class Failing(FaultFS):
        def _pass(self, what: str, name: str) -> None:
            super()._pass(what, name)
            if self.fails and what == kind and name == f"{failing}.jsonl":
                raise OSError(errno.EIO, "Input/output error")

        fails = False

    ops = Failing()
    stopped = 0

    async def use() -> None:
        async with three(tmp_path, ops) as ledgers, anyio.create_task_group() as tasks:

            async def wait() -> None:
                nonlocal stopped
                with pytest.raises(LedgerWriteError, match="Input/output error"):
                    await ledgers.commit()
                stopped += 1

            clients = [getattr(ledgers, name) for name in NAMES]
            for client in clients:
                await client.write(fact(1))
            await ledgers.commit()
            ops.fails = True
            for client in clients:
                await client.write(fact(2))
            for _ in range(3):
                tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(10):
                while stopped < 3:
                    await anyio.lowlevel.checkpoint()
            ops.fails = False
            ops.log.clear()
            for client in clients:
                assert await numbers(client.read()) == [1, 2], "reads go on"
                with pytest.raises(LedgerWriteError):
                    await client.write(fact(3))
                with pytest.raises(LedgerWriteError):
                    await client.commit()

    with pytest.raises(LedgerWriteError):
        await use()
    assert stopped == 3
    assert [what for what, _ in ops.log if what in ("write", "sync", "truncate")] == []
    async with three(tmp_path) as ledgers:
        ho1m, ho2m = [len(await numbers(client.read())) for client in (ledgers.ho1m, ledgers.ho2m)]
        assert 1 <= ho2m <= ho1m <= 2


async def test_open_ledgers_gives_a_class_its_three_ledgers_and_finds_sessions_by_key(tmp_path: Path) -> None:
    places: dict[str, Any] = {name: tmp_path / "deep" / "er" / f"{name}.jsonl" for name in NAMES}
    places |= {"agent_class": "RESIDENT:bo", "clock": SetClock(), "index_dir": tmp_path / "i"}
    for _ in range(2):
        async with open_ledgers(**places) as ledgers:
            assert [ledgers.ho1m.ledger_id, ledgers.ho2m.ledger_id, ledgers.context.ledger_id] == [
                "HO1M:RESIDENT%3Abo",
                "HO2M:RESIDENT%3Abo",
                "CONTEXT:RESIDENT%3Abo",
            ]
            number = ledgers.ho2m.position
            session_id = f"SES-{number:08x}"
            await ledgers.ho2m.write(
                LedgerEntry("SESSION_START", session_id, {"session_id": session_id, "subject_id": "ada", "external_id": "x"})
            )
            assert len(await numbers(ledgers.ho2m.read(key="sessions"))) == number + 1
            [newest] = await ledgers.ho2m.last(key=external_index_key("ada", "x"))
            assert newest.session_id == session_id
