"""A cancellation that nobody asked for in what a program hands in beside tools and providers: memory, readers, disks and so on.

None of them ends the task of a caller who was not cancelled; each costs what it was there for. docs/actors.md.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener.actors.attention.attention_context import ContextFragment
from kitchener.actors.attention.retriever import AttentionRetriever
from kitchener.actors.attention.templates import load_templates, resolve_template
from kitchener.config import HO2Config
from kitchener.errors import ActorStopped, LedgerWriteError
from kitchener.ledger.disk.file_ops import FileOps
from kitchener.memory import HO3Memory
from kitchener.records import events
from kitchener.records.prompt import Attempt
from kitchener.records.turn import TurnUpdate
from kitchener.testing import ScriptedProvider
from tests.acceptance.memory.memory_kit import ADA, QUESTIONS, open_remembering
from tests.acceptance.stack import Hold, echo, open_by_hand, open_scripted, read_all
from tests.actors.executor.executor_kit import Streamed, open_bench, work_order
from tests.gateway.shared.gateway_kit import Told, ask, failure, gateway_of
from tests.hostile.code.strays import Stray, with_strays
from tests.hostile.kit import bystander


class Waiting:
    """A memory of which one method waits for something that is cancelled."""

    def __init__(self, memory: HO3Memory, method: str, stray: Stray) -> None:
        self._memory, self._method, self._stray = memory, method, stray
        self.is_waiting = True

    def __getattr__(self, name: str) -> Any:
        return self._wait if name == self._method and self.is_waiting else getattr(self._memory, name)

    async def _wait(self, *_: Any, **__: Any) -> None:
        await self._stray()


@with_strays
@pytest.mark.parametrize("method", ["read_active_biases", "log_turn", "check_gate"])
async def test_a_memory_that_is_cut_off_costs_a_turn_what_it_would_have_remembered(
    tmp_path: Path, stray: Stray, method: str
) -> None:
    async with open_remembering(tmp_path, wrap=partial(Waiting, method=method, stray=stray)) as (stack, _):
        for _ in range(3):
            result = await stack.turn("hello", subject_id="ada")
            assert (result.response, result.error) == ("re: hello", None)
        told = await stack.payloads(events.DEGRADATION)
    assert [each["component"] for each in told] == ["HO3"] * 3


@with_strays
async def test_learned_lines_whose_entries_cannot_be_read_are_left_out(tmp_path: Path, stray: Stray) -> None:
    """Where the Authority decides what the model sees, it asks the memory once more. Regression: the turn was aborted."""
    wrap = partial(Waiting, method="read_refs", stray=stray)
    async with open_remembering(tmp_path, wrap=wrap, context_mode="enforce") as (stack, memory):
        await stack.turn("hello", subject_id="ada")
        await stack.supervisor.run_consolidation([QUESTIONS], namespace=ADA)
        result = await stack.turn("hello", subject_id="ada")
        assert (result.response, result.error) == ("re: hello", None)
        assert [each["component"] for each in await stack.payloads(events.DEGRADATION)] == ["HO3"]
        memory.is_waiting = False
        await stack.turn("hello", subject_id="ada")
        assert len(await stack.payloads(events.DEGRADATION)) == 1


@with_strays
@pytest.mark.parametrize("method", ["check_gate", "read_signals", "read_events", "log_overlay"])
async def test_a_consolidation_whose_memory_is_cut_off_is_an_error_for_whoever_asked(
    tmp_path: Path, stray: Stray, method: str
) -> None:
    """Not their cancellation; what was begun has its end on record, and the next one learns."""
    async with open_remembering(tmp_path, wrap=partial(Waiting, method=method, stray=stray)) as (stack, memory):
        memory.is_waiting = False
        await stack.turn("hello", subject_id="ada")
        memory.is_waiting = True
        with pytest.raises(ActorStopped, match="the consolidation was cut off: Cancelled"):
            await stack.supervisor.run_consolidation([QUESTIONS], namespace=ADA)
        memory.is_waiting = False
        (wo,) = await stack.supervisor.run_consolidation([QUESTIONS], namespace=ADA)
    assert wo.state == "completed"


@with_strays
async def test_a_session_that_cannot_be_resumed_is_an_error_for_whoever_asked(tmp_path: Path, stray: Stray) -> None:
    wrap = partial(Waiting, method="last_turn_id", stray=stray)
    async with open_remembering(tmp_path, wrap=wrap) as (stack, _):
        session_id = await stack.supervisor.start_session(subject_id="ada")
        await stack.turn("hello", session_id=session_id)
    async with open_remembering(tmp_path, wrap=wrap) as (stack, memory):
        with pytest.raises(ActorStopped, match="resuming the session was cut off: Cancelled"):
            await stack.turn("again", session_id=session_id)
        memory.is_waiting = False
        assert (await stack.turn("again", session_id=session_id)).response == "re: again"


class Readers:
    """A `ContextProvider` of which one reader waits for something that is cancelled."""

    def __init__(self, method: str, stray: Stray) -> None:
        self._method, self._stray = method, stray

    async def read_ledger_entries(self, session_id: str, *, limit: int) -> Sequence[ContextFragment]:
        return await self._read("read_ledger_entries")

    async def search_text(self, session_id: str, query: str, *, limit: int) -> Sequence[ContextFragment]:
        return await self._read("search_text")

    async def read_registry(self) -> Sequence[ContextFragment]:
        return await self._read("read_registry")

    async def _read(self, method: str) -> Sequence[ContextFragment]:
        if method == self._method:
            await self._stray()
        return [ContextFragment("test", method, method, 1)]


@with_strays
@pytest.mark.parametrize("method", ["read_ledger_entries", "search_text", "read_registry"])
async def test_a_reader_that_is_cut_off_costs_its_context_only(tmp_path: Path, stray: Stray, method: str) -> None:
    template = resolve_template(load_templates(), "ADMIN")
    attention = AttentionRetriever(Readers(method, stray), HO2Config(), template)
    async with open_by_hand(tmp_path, attention=attention) as stack:
        result = await stack.turn("hello")
        planned = await stack.payloads(events.WO_PLANNED)
    assert (result.response, result.degraded) == ("re: hello", False)
    assert planned[-1]["attention"]["cut_by"] == "error"


@with_strays
@pytest.mark.parametrize("state", ["started", "failed"])
@pytest.mark.parametrize("streams", [False, True])
async def test_an_on_attempt_that_is_cut_off_ends_its_own_call_and_gives_its_slot_back(
    stray: Stray, state: str, *, streams: bool
) -> None:
    """It belongs to whoever calls the gateway, and so does what it raises; the next caller finds the slot free."""

    async def told(attempt: Attempt, /) -> None:
        if attempt.state == state:
            await stray()

    answers = ScriptedProvider([failure("server_error"), "fine"] if state == "failed" else ["fine"])
    async with gateway_of(a=(answers, {"max_concurrency": 1, "max_retries": 0})).open() as gateway:

        async def call() -> None:
            if not streams:
                await gateway.complete(ask(), on_attempt=told)
                return
            stream: Any = gateway.stream(ask(), on_attempt=told)
            async with aclosing(stream) as items:
                async for _ in items:
                    pass

        with pytest.raises(anyio.get_cancelled_exc_class()):
            await call()
        assert gateway.statistics()["a"].running == 0
        with anyio.fail_after(5):
            assert (await gateway.complete(ask(), on_attempt=Told())).text == "fine"


class CutOffDisk(FileOps):
    """A disk whose driver raises what event loops raise, from the moment it is told to."""

    def __init__(self, raised: BaseException) -> None:
        self._raised, self.is_cut_off = raised, False

    def sync(self, fd: int) -> None:
        if self.is_cut_off:
            raise self._raised
        super().sync(fd)


def cancellations() -> Mapping[str, BaseException]:
    """The exceptions by which either event loop cancels."""
    import trio

    return {"asyncio": asyncio.CancelledError(), "trio": trio.Cancelled._create(source="explicit")}


@pytest.mark.parametrize("of", ["asyncio", "trio"])
async def test_a_commit_round_that_is_cut_off_is_an_error_and_never_silence(tmp_path: Path, of: str) -> None:
    """Whether it is on disk is not known, so its ledgers take no more, and whoever opened them hears of it."""
    disk, outcomes = CutOffDisk(cancellations()[of]), list[Exception]()

    async def program() -> None:
        async with open_by_hand(tmp_path, disk=disk) as stack:
            session_id = await stack.supervisor.start_session()
            assert (await stack.turn("hello", session_id=session_id)).response == "re: hello"
            disk.is_cut_off = True
            try:
                await stack.turn("lost", session_id=session_id)
            except LedgerWriteError as error:
                outcomes.append(error)
                raise

    with anyio.fail_after(10), pytest.RaisesGroup(LedgerWriteError, flatten_subgroups=True, allow_unwrapped=True):
        await program()
    disk.is_cut_off = False
    async with open_by_hand(tmp_path, disk=disk) as stack:
        assert (await stack.turn("next")).response == "re: next"
        assert (await stack.ledgers.ho2m.verify()).ok


@with_strays
async def test_a_reader_of_a_stream_that_is_cut_off_ends_its_own_turn_only(tmp_path: Path, stray: Stray) -> None:
    """What it raises is its own; the turn that it read is aborted on record, and the session goes on."""
    async with open_scripted(tmp_path, ScriptedProvider(echo, gate=Hold("attack"))) as runtime, bystander(runtime):
        supervisor = runtime.supervisor()
        session_id = await supervisor.start_session(subject_id="mallory")

        async def read() -> None:
            stream: Any = supervisor.stream_turn("attack", session_id=session_id)
            async with aclosing(stream) as updates:
                async for _ in updates:
                    await stray()

        for _ in range(3):
            with anyio.fail_after(10), pytest.raises(anyio.get_cancelled_exc_class()):
                await read()
        with anyio.fail_after(10):
            assert (await supervisor.handle_turn("hello", session_id=session_id)).response == "echo: hello"
        ends = [each.entry_type for each in await read_all(runtime.ledgers().ho2m, session_id=session_id)]
    assert (ends.count(events.TURN_ABORTED), ends.count(events.TURN_COMPLETED)) == (3, 1)


@with_strays
async def test_a_listener_of_an_executor_that_is_cut_off_ends_its_own_work_order_only(tmp_path: Path, stray: Stray) -> None:
    """Who assembles an executor by hand gives it listeners; what one raises is theirs."""

    async def listen(update: TurnUpdate) -> None:
        await stray()

    reply = '{"response_text": "Hello"}'
    async with open_bench(tmp_path, Streamed([reply]), reply) as bench:
        asked = work_order("synthesize")
        bench.listeners[asked.wo_id] = listen
        with pytest.raises(anyio.get_cancelled_exc_class()):
            await bench.executor.execute(asked)
        assert bench.gateway.closed_streams == 1
        del bench.listeners[asked.wo_id]
        assert (await bench.executor.execute(asked)).state == "completed"
