"""When a runtime closes, running turns may finish, the others are aborted on record, and no caller waits for ever."""

import logging
import sys
import traceback
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener import open_runtime, tool
from kitchener.clock import SystemClock
from kitchener.errors import ActorStopped, LedgerLocked, LedgerWriteError, RuntimeClosed, TurnShutDown
from kitchener.gateway import OfflineProvider
from kitchener.ledger import LedgerEntry, StoredEntry, open_ledgers
from kitchener.records import events
from kitchener.records.turn import TurnResult
from kitchener.runtime import Runtime
from kitchener.runtime.root_layout import sealer_of
from kitchener.testing import ScriptedProvider
from tests.acceptance.conftest import OpenRuntime
from tests.acceptance.stack import QUICK, Hold, echo, open_scripted, outcome, places, read_all, scripted_config, types_of
from tests.shared.logs import captured_logs


async def recorded(root: Path) -> list[StoredEntry]:
    """What stands in HO2m after the runtime has gone."""
    async with open_ledgers(**places(root), config=QUICK, sealer=sealer_of(scripted_config(root))) as ledgers:
        assert (await ledgers.ho2m.verify()).ok
        return await read_all(ledgers.ho2m)


async def test_a_shutdown_lets_running_turns_finish(tmp_path: Path) -> None:
    """Within the grace period a running turn completes; those in line are turned away; no new one is admitted."""
    hold = Hold("running")
    provider = ScriptedProvider(echo, gate=hold)
    outcomes: dict[str, TurnResult | Exception] = {}
    with anyio.fail_after(10):
        async with (
            anyio.create_task_group() as tasks,
            open_scripted(tmp_path, provider, limits={"max_running_turns": 1}) as runtime,
        ):
            supervisor = runtime.supervisor()
            sessions = {message: await supervisor.start_session() for message in ("running", "waiting")}

            async def send(message: str) -> None:
                outcomes[message] = await outcome(supervisor.handle_turn(message, session_id=sessions[message]))

            tasks.start_soon(send, "running")
            await hold.arrived["running"].wait()
            tasks.start_soon(send, "waiting")
            await anyio.wait_all_tasks_blocked()
            assert (runtime.statistics()["running_turns"], runtime.statistics()["waiting_turns"]) == (1, 1)

            async def let_go() -> None:
                await anyio.wait_all_tasks_blocked()
                outcomes["late"] = await outcome(supervisor.handle_turn("late"))
                hold.released["running"].set()

            tasks.start_soon(let_go)
    assert isinstance(outcomes["running"], TurnResult)
    assert isinstance(outcomes["waiting"], RuntimeClosed)
    assert isinstance(outcomes["late"], RuntimeClosed)
    entries = await recorded(tmp_path)
    assert [entry.payload["user_message"] for entry in entries if entry.entry_type == events.TURN_STARTED] == ["running"]
    assert entries[-1].entry_type == events.TURN_COMPLETED


async def test_a_turn_that_outlives_the_grace_period_is_aborted_as_shutdown(tmp_path: Path) -> None:
    """Past `shutdown_grace_s` the turn is aborted with that reason, and its caller learns that the runtime has gone."""
    hold = Hold("running")
    outcomes: list[TurnResult | Exception] = []
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            limits = {"shutdown_grace_s": 0.02}
            async with open_scripted(tmp_path, ScriptedProvider(echo, gate=hold), limits=limits) as runtime:

                async def send() -> None:
                    outcomes.append(await outcome(runtime.supervisor().handle_turn("running")))

                tasks.start_soon(send)
                await hold.arrived["running"].wait()
    assert [type(each) for each in outcomes] == [TurnShutDown]
    entries = await recorded(tmp_path)
    assert [e.payload["reason"] for e in entries if e.entry_type == events.TURN_ABORTED] == ["shutdown"]
    assert [e.payload["reason"] for e in entries if e.entry_type == events.WO_ABANDONED] == ["shutdown"]


async def test_cancelling_the_whole_program_still_records_the_end_of_its_turn(tmp_path: Path) -> None:
    """Ctrl-C cancels runtime and turn at once: TURN_ABORTED is written all the same, and only the cancellation comes out.

    Several times, because the order in which cancelled tasks wake is chance.
    """
    for n in range(5):
        root, hold = tmp_path / str(n), Hold("running")
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:

                async def program(root: Path = root, hold: Hold = hold) -> None:
                    async with open_scripted(root, ScriptedProvider(echo, gate=hold)) as runtime:
                        await runtime.supervisor().handle_turn("running")

                tasks.start_soon(program)
                await hold.arrived["running"].wait()
                tasks.cancel_scope.cancel()
        assert tasks.cancel_scope.cancelled_caught
        assert types_of(await recorded(root))[-2:] == [events.WO_ABANDONED, events.TURN_ABORTED]


async def test_an_error_in_the_program_comes_out_as_it_is(tmp_path: Path) -> None:
    """What the body of `async with open_runtime(…)` raises is raised, not wrapped in a group, and the ledgers are closed."""

    async def program() -> None:
        async with open_scripted(tmp_path) as runtime:
            await runtime.supervisor().handle_turn("hello")
            raise LookupError("my own")

    with pytest.raises(LookupError, match="my own"):
        await program()
    assert types_of(await recorded(tmp_path))[-1] == events.TURN_COMPLETED


@pytest.mark.parametrize("of", ["a provider", "a tool"])
async def test_what_goes_wrong_while_a_turn_is_stopped_is_logged(tmp_path: Path, of: str) -> None:
    """Once, without the words of the error. Regression: it left no trace."""
    began = anyio.Event()

    async def break_down(_: object = None) -> None:
        began.set()
        try:
            await anyio.sleep(60)
        finally:
            raise ValueError("secret words")

    @tool(read_only=True)
    async def list_packages() -> None:
        """List the packages."""
        await break_down()

    provider = ScriptedProvider(echo, gate=break_down) if of == "a provider" else OfflineProvider()
    settings = scripted_config(tmp_path, limits={"shutdown_grace_s": 0.02})
    opened = open_runtime(settings, providers={"scripted": provider}, tools=[list_packages])
    outcomes: list[TurnResult | Exception] = []
    with anyio.fail_after(10), captured_logs(logging.WARNING) as logged:
        async with anyio.create_task_group() as tasks, opened as runtime:

            async def send() -> None:
                outcomes.append(await outcome(runtime.supervisor().handle_turn("list packages")))

            tasks.start_soon(send)
            await began.wait()
    assert isinstance(outcomes[0], TurnShutDown)
    (only,) = [each for each in logged if each["event"] == "failed while it was cancelled"]
    assert only["error"].startswith("ValueError at ")
    assert only["turn_id"] == outcomes[0].args[0].split()[1]
    assert "secret" not in repr(logged)


async def test_an_error_of_the_block_is_told_beside_one_of_closing(tmp_path: Path) -> None:
    """Regression: the block's error was lost."""
    path, mine = tmp_path / "HO1" / "ADMIN" / "ho1m.jsonl", ValueError("of the block")

    async def fail_twice() -> None:
        async with open_scripted(tmp_path) as runtime:
            await runtime.supervisor().handle_turn("hello")
            await runtime.ledgers().ho1m.write(LedgerEntry("LLM_CALL", "mine", {}))
            path.write_bytes(path.read_bytes() + b"more")
            raise mine

    with anyio.fail_after(10), pytest.raises(LedgerWriteError, match="somebody else wrote to it") as caught:
        await fail_twice()
    assert "ValueError: of the block" in "".join(traceback.format_exception(caught.value))


async def test_calls_after_the_end_are_refused(tmp_path: Path) -> None:
    """A supervisor that is kept beyond its runtime says that the runtime has gone, whatever it is asked."""
    async with open_scripted(tmp_path) as runtime:
        supervisor = runtime.supervisor()
        result = await supervisor.handle_turn("hello")
    with anyio.fail_after(10):
        for call in (
            supervisor.handle_turn("again", session_id=result.session_id),
            supervisor.start_session(),
            supervisor.end_session(result.session_id),
            supervisor.session(result.session_id),
        ):
            with pytest.raises(RuntimeClosed):
                await call


async def test_any_number_of_callers_may_wait_for_the_runtime_to_be_idle(scripted: OpenRuntime) -> None:
    """`drain` returns to everyone who waits when the last turn ends, and at once when none runs."""
    hold = Hold("running")
    async with scripted(ScriptedProvider(echo, gate=hold)) as runtime:
        drained: list[int] = []

        async def drain(runtime: Runtime, n: int) -> None:
            await runtime.drain()
            drained.append(n)

        async def run() -> None:
            await runtime.supervisor().handle_turn("running")

        with anyio.fail_after(10):
            await runtime.drain()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await hold.arrived["running"].wait()
                for n in range(3):
                    tasks.start_soon(drain, runtime, n)
                await anyio.wait_all_tasks_blocked()
                assert drained == []
                hold.released["running"].set()
            await drain(runtime, 3)
    assert sorted(drained) == [0, 1, 2, 3]


class BrokenForExecutors(SystemClock):
    """A clock that fails whoever runs work orders: neither a model, a tool nor a user can make an executor fail."""

    def time_us(self) -> int:
        if sys._getframe(1).f_code.co_filename.endswith("execution.py"):
            raise ArithmeticError("a bug")
        return super().time_us()


async def failing(root: Path, outcomes: list[TurnResult | Exception], **options: Any) -> None:
    """Eight turns with an executor that fails each of them, where three failures are too many."""
    async with open_scripted(root, clock=BrokenForExecutors(), limits={"max_restarts": 3}) as runtime:
        calls = [runtime.supervisor().handle_turn(f"message {n}", **options) for n in range(8)]
        outcomes.extend([await outcome(call) for call in calls])


async def test_failures_of_one_subject_never_stop_the_runtime_for_others(tmp_path: Path) -> None:
    outcomes: list[TurnResult | Exception] = []
    with anyio.fail_after(10):
        await failing(tmp_path, outcomes, subject_id="mallory")
    assert [result.error.kind for result in outcomes if isinstance(result, TurnResult) and result.error] == ["EXECUTOR"] * 8


async def test_an_actor_that_fails_too_often_stops_the_runtime_with_its_error(tmp_path: Path) -> None:
    """A bug that strikes subject after subject is not hidden: the runtime ends, the bug is the cause, no call hangs."""
    outcomes: list[TurnResult | Exception] = []
    with anyio.fail_after(10), pytest.raises(ActorStopped) as caught:
        await failing(tmp_path, outcomes)
    assert isinstance(caught.value.__cause__, ArithmeticError)
    types = types_of(await recorded(tmp_path))
    assert types.count(events.TURN_STARTED) == types.count(events.TURN_COMPLETED) + types.count(events.TURN_ABORTED)
    assert types.count(events.TURN_COMPLETED) >= 2


async def test_a_second_runtime_on_the_same_ledgers_is_refused(tmp_path: Path) -> None:
    """One process writes a ledger at a time; the other is told which file is taken, and the first goes on undisturbed."""
    async with open_scripted(tmp_path) as runtime:
        with pytest.raises(LedgerLocked, match="jsonl"):
            await open_scripted(tmp_path).__aenter__()
        assert (await runtime.supervisor().handle_turn("hello")).response == "echo: hello"
    async with open_scripted(tmp_path) as runtime:
        assert (await runtime.supervisor().handle_turn("hello")).response == "echo: hello"
