"""Questions that wait for the worker thread share its calls, and each is answered for itself (docs/ledger.md)."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from kitchener.errors import LedgerDamaged
from kitchener.ledger import StoredEntry
from kitchener.ledger.batched_questions import BatchedQuestions
from kitchener.ledger.reads import Entries
from tests.ledger.support import fact, numbers, open_ledger


class Thread:
    """Counts the calls, and holds the first one until it is let on."""

    def __init__(self) -> None:
        self.calls = 0
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.answered = list[int]()

    def hold(self) -> str:
        self.begun.set()
        self.goes_on.wait(10)
        return "held"

    def double(self, number: int) -> int:
        self.answered.append(number)
        if number % 10 == 9:
            raise LookupError(number)
        return 2 * number


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[Thread]:
    found, run_sync = Thread(), anyio.to_thread.run_sync

    async def counted(call: Callable[..., object], *arguments: object, limiter: anyio.CapacityLimiter | None = None) -> object:
        found.calls += 1
        return await run_sync(call, *arguments, limiter=limiter)

    monkeypatch.setattr(anyio.to_thread, "run_sync", counted)
    yield found
    found.goes_on.set()


@asynccontextmanager
async def held(reads: BatchedQuestions, thread: Thread) -> AsyncIterator[list[str]]:
    """The thread answers a question during the block; gives the answer after it."""
    found = list[str]()

    async def ask() -> None:
        found.append(await reads.ask(thread.hold))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            while not thread.begun.is_set():  # noqa: ASYNC110  a thread sets it
                await anyio.sleep(0.001)
            yield found
            thread.goes_on.set()


async def test_what_waits_for_a_call_shares_the_next_ones(thread: Thread) -> None:
    reads, found = BatchedQuestions(anyio.CapacityLimiter(1)), dict[int, int | str]()

    async def ask(number: int) -> None:
        try:
            found[number] = await reads.ask(partial(thread.double, number))
        except LookupError as error:
            found[number] = f"failed {error}"

    async with anyio.create_task_group() as tasks:
        async with held(reads, thread) as first:
            for number in range(100):
                tasks.start_soon(ask, number)
            await anyio.wait_all_tasks_blocked()
            assert (found, first) == ({}, [])
        assert first == ["held"]
    assert found == {each: f"failed {each}" if each % 10 == 9 else 2 * each for each in range(100)}
    # 64 of a call at most: the held one has taken its own question only, because no other waited when it began.
    assert thread.calls <= 4
    assert sorted(thread.answered) == list(range(100))


async def test_questions_one_after_the_other_are_answered_at_once(thread: Thread) -> None:
    reads = BatchedQuestions(anyio.CapacityLimiter(1))
    assert [await reads.ask(partial(thread.double, number)) for number in range(5)] == [0, 2, 4, 6, 8]
    assert thread.calls == 5


@pytest.mark.parametrize("gone", [(0,), (1,), (0, 1, 2), (4,), (0, 4), tuple(range(5))])
async def test_a_task_that_is_cancelled_takes_no_other_question_along(thread: Thread, gone: tuple[int, ...]) -> None:
    """Also the first one that waits, which would have made the next call."""
    reads, found = BatchedQuestions(anyio.CapacityLimiter(1)), dict[int, int]()
    scopes = [anyio.CancelScope() for _ in range(5)]

    async def ask(number: int) -> None:
        with scopes[number]:
            found[number] = await reads.ask(partial(thread.double, number))

    async with anyio.create_task_group() as tasks, held(reads, thread):
        for number in range(5):
            tasks.start_soon(ask, number)
        await anyio.wait_all_tasks_blocked()
        for each in gone:
            scopes[each].cancel()
        await anyio.wait_all_tasks_blocked()
    assert found == {each: 2 * each for each in range(5) if each not in gone}
    assert sorted(thread.answered) == [each for each in range(5) if each not in gone]  # what nobody waits for is not asked
    assert await reads.ask(partial(thread.double, 6)) == 12


async def test_who_is_cancelled_while_the_thread_works_for_all_leaves_the_others_their_answers(thread: Thread) -> None:
    reads, found, scope = BatchedQuestions(anyio.CapacityLimiter(1)), list[int](), anyio.CancelScope()

    async def ask_and_go() -> None:
        with scope:
            await reads.ask(thread.hold)
            await anyio.lowlevel.checkpoint()
            raise AssertionError("it was cancelled")

    async def ask() -> None:
        found.append(await reads.ask(partial(thread.double, 4)))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask_and_go)
            while not thread.begun.is_set():  # noqa: ASYNC110  a thread sets it
                await anyio.sleep(0.001)
            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
            await anyio.wait_all_tasks_blocked()
            thread.goes_on.set()
    assert found == [8]


async def test_who_is_cancelled_while_another_read_has_the_thread_makes_no_call(thread: Thread) -> None:
    """Reads of another kind hold the limiter; the task that waits for it answers for all, and may be cancelled."""
    limiter, found = anyio.CapacityLimiter(1), list[int]()
    reads, scope = BatchedQuestions(limiter), anyio.CancelScope()

    async def ask_and_go() -> None:
        with scope:
            await reads.ask(thread.hold)

    async def ask() -> None:
        found.append(await reads.ask(partial(thread.double, 3)))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks, limiter:
            tasks.start_soon(ask_and_go)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
            await anyio.wait_all_tasks_blocked()
    assert found == [6]
    assert not thread.begun.is_set()


async def test_reads_of_many_conversations_at_once_share_calls(tmp_path: Path, thread: Thread) -> None:
    """Otherwise the first turns of many conversations wait for one another while the event loop is busy."""
    async with open_ledger(tmp_path / "l.jsonl") as ledger:
        for number in range(100):
            await ledger.write(fact(number + 1, session_id=f"SES-{number:08x}"))
        await ledger.commit()
        before, found = thread.calls, dict[int, list[int]]()

        async def read(number: int) -> None:
            found[number] = await numbers(ledger.read(session_id=f"SES-{number:08x}"))

        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(read, number)
        assert found == {number: [number + 1] for number in range(100)}
        assert thread.calls - before < 25


@pytest.mark.parametrize("fails", [False, True])
async def test_a_loop_that_goes_on_after_a_timeout_misses_no_entry_and_no_failure(
    tmp_path: Path, thread: Thread, fails: bool
) -> None:
    async with open_ledger(tmp_path / "l.jsonl") as ledger:
        for number in range(3):
            await ledger.write(fact(number))
        stored = [entry async for entry in ledger.read()]

    failure = LedgerDamaged("l.jsonl", line=2, offset=0, field="", expected="", found="")
    reads, scope = BatchedQuestions(anyio.CapacityLimiter(1)), anyio.CancelScope()
    begun, goes_on = threading.Event(), threading.Event()

    def found() -> Iterator[StoredEntry]:
        yield stored[0]
        begun.set()
        goes_on.wait(10)
        if fails:
            raise failure
        yield from stored[1:]

    entries, got = Entries(found(), reads.ask), list[StoredEntry]()

    async def read() -> None:
        with scope:
            got.append(await anext(entries))

    async with anyio.create_task_group() as tasks, held(reads, thread):
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        thread.goes_on.set()  # the same call goes on with the read
        while not begun.is_set():  # noqa: ASYNC110  a thread sets it
            await anyio.sleep(0.001)
        scope.cancel()
        await anyio.wait_all_tasks_blocked()
        goes_on.set()
    for _ in range(2):
        with pytest.raises(LedgerDamaged) if fails else nullcontext():
            got.extend([entry async for entry in entries])
    assert got == ([] if fails else stored)
