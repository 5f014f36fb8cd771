"""Between a turn's last entry and its commit, the reply waits for the disk, and nothing undoes the turn."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kitchener.config import LimitsConfig
from kitchener.errors import CommitUnknown
from kitchener.ledger.disk.file_ops import FileOps
from kitchener.records import events
from kitchener.records.turn import TurnResult
from kitchener.records.work_order import WorkOrder
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import QUICK, Said, ScriptedExecutor, Stack, open_by_hand, open_scripted, outcome, read_all
from tests.actors.time_control import in_stopped_time, pass_time


class HeldDisk(FileOps):
    """A disk that, once it is told to, does not answer a sync until it is let go."""

    def __init__(self) -> None:
        self._free = threading.Event()
        self._free.set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """No sync ends until the block is left, or `let_go`."""
        self._free.clear()
        try:
            yield
        finally:
            self.let_go()

    def let_go(self) -> None:
        """All of them end."""
        self._free.set()

    def sync(self, fd: int) -> None:
        assert self._free.wait(timeout=20), "the test never let the disk go"
        super().sync(fd)


async def complete_but_not_durable(stack: Stack, session_id: str) -> None:
    """Returns when the session's turn is complete and waits for the disk."""
    while (await stack.types(session_id=session_id))[-1] != events.TURN_COMPLETED:
        await anyio.lowlevel.checkpoint()
    await anyio.wait_all_tasks_blocked()


async def test_a_reply_waits_for_the_disk(tmp_path: Path) -> None:
    """The turn is complete and readable, but its caller hears of it only when it is on disk."""
    disk, results = HeldDisk(), list[TurnResult]()
    async with open_by_hand(tmp_path, disk=disk) as stack:
        session_id = await stack.supervisor.start_session()

        async def send() -> None:
            results.append(await stack.turn("hello", session_id=session_id))

        with disk.held(), anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                await complete_but_not_durable(stack, session_id)
                assert results == []
                disk.let_go()
    assert [result.response for result in results] == ["re: hello"]


async def test_a_complete_turn_is_not_replaced(tmp_path: Path) -> None:
    """A newer message arrives while the first turn waits for the disk: too late to replace it, both get their result."""
    disk, outcomes = HeldDisk(), dict[str, TurnResult | Exception]()
    async with open_by_hand(tmp_path, disk=disk, settings={"overlap_policy": "replace"}) as stack:
        session_id = await stack.supervisor.start_session()

        async def send(message: str) -> None:
            outcomes[message] = await outcome(stack.turn(message, session_id=session_id))

        with disk.held(), anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send, "one")
                await complete_but_not_durable(stack, session_id)
                tasks.start_soon(send, "two")
                await anyio.wait_all_tasks_blocked()
                disk.let_go()
        assert (await stack.types()).count(events.TURN_ABORTED) == 0
    assert [result.response for result in outcomes.values() if isinstance(result, TurnResult)] == ["re: one", "re: two"]


async def test_a_cancelled_wait_for_the_disk_leaves_the_turn_complete(tmp_path: Path) -> None:
    """The caller goes away in that moment: the turn stands, and its key is answered with it."""
    disk = HeldDisk()
    call: dict[str, Any] = {"message": "hello", "subject_id": "ada", "idempotency_key": "k1"}
    async with open_by_hand(tmp_path, disk=disk) as stack:
        session_id = await stack.supervisor.start_session(subject_id="ada")
        call["session_id"] = session_id

        async def send() -> None:
            await stack.supervisor.handle_turn(**call)

        with disk.held(), anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                await complete_but_not_durable(stack, session_id)
                tasks.cancel_scope.cancel()
                disk.let_go()
        (completed,) = await read_all(stack.ledgers.ho2m, entry_type=events.TURN_COMPLETED)
        assert await stack.turn(**call) == TurnResult.from_payload(completed.payload)
        assert (await stack.turn("next", session_id=session_id)).error is None
        assert (await stack.types()).count(events.TURN_ABORTED) == 0
        assert (await stack.types()).count(events.TURN_STARTED) == 2


async def test_a_cancelled_call_ends_when_its_abort_is_on_disk(tmp_path: Path) -> None:
    """Whoever cancels a turn may rely on its end: the call returns only when TURN_ABORTED is durable."""
    disk, thinking = HeldDisk(), anyio.Event()

    async def think(_wo: WorkOrder) -> Said:
        thinking.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with open_by_hand(tmp_path, ScriptedExecutor(think), disk=disk) as stack:
        session_id = await stack.supervisor.start_session()
        scope, ended = anyio.CancelScope(), anyio.Event()

        async def send() -> None:
            with scope:
                await stack.supervisor.handle_turn("hello", session_id=session_id)
            ended.set()

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                await thinking.wait()
                with disk.held():
                    scope.cancel()
                    while events.WO_ABANDONED not in await stack.types(session_id=session_id):
                        await anyio.lowlevel.checkpoint()
                    await anyio.wait_all_tasks_blocked()
                    assert not ended.is_set()
                await ended.wait()
        assert stack.ledgers.ho2m.durable_position == stack.ledgers.ho2m.position


@in_stopped_time
async def test_a_disk_that_does_not_answer_in_time_leaves_the_outcome_unknown(tmp_path: Path) -> None:
    """Past deadline and grace the caller hears that the turn is complete, its durability not known; the key finds it."""
    disk, limits = HeldDisk(), LimitsConfig(abort_grace_s=3)
    async with open_by_hand(tmp_path, disk=disk, limits=limits) as stack:
        session_id = await stack.supervisor.start_session()

        async def send() -> None:
            with pytest.raises(CommitUnknown, match=f"T-{session_id[4:]}-000001"):
                await stack.supervisor.handle_turn("hello", session_id=session_id, idempotency_key="k1", deadline=7)

        with disk.held():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                await complete_but_not_durable(stack, session_id)
                pass_time(7)
                await anyio.wait_all_tasks_blocked()
                pass_time(3)
        assert (await stack.turn("hello", session_id=session_id, idempotency_key="k1")).response == "re: hello"
        assert (await stack.types()).count(events.TURN_STARTED) == 1


async def test_what_was_said_is_stored_once_per_ledger(tmp_path: Path) -> None:
    """Message and reply stand once in HO2m, the model's text once in HO1m, however many turns show them again to the model."""
    said = [f"a sentence that is told apart: {n}" for n in range(5)]
    provider = ScriptedProvider.replies("and a reply that is told apart")
    plain = QUICK.model_copy(update={"seal": False})  # the stored bytes are looked at
    async with open_scripted(tmp_path, provider, ledger=plain) as runtime:
        session_id = await runtime.supervisor().start_session()
        for message in said:
            await runtime.supervisor().handle_turn(message, session_id=session_id)
    ho2m = (tmp_path / "HO2" / "ADMIN" / "ho2m.jsonl").read_text()
    ho1m = (tmp_path / "HO1" / "ADMIN" / "ho1m.jsonl").read_text()
    assert [ho2m.count(message) for message in said] == [1] * 5
    assert [ho1m.count(message) for message in said] == [0] * 5
    assert (ho2m.count("and a reply that is told apart"), ho1m.count("and a reply that is told apart")) == (5, 5)
