"""One subject cannot take all the slots, nor all the places in line, however many sessions or streams they open."""

from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kitchener.config import LedgerConfig, LimitsConfig, ProviderConfig, RouterConfig, RuntimeConfig
from kitchener.errors import CallerError, KitchenerError, Overloaded
from kitchener.records import events
from kitchener.records.prompt import PromptRequest
from kitchener.records.turn import TextDelta
from kitchener.runtime import Runtime, open_runtime
from kitchener.testing import ScriptedProvider
from tests.acceptance.context.context_kit import ENFORCE
from tests.acceptance.stack import Hold, echo, open_scripted, read_all, scripted_config
from tests.hostile.kit import BYSTANDER, bystander

MESSAGES = 200


async def yields(request: PromptRequest) -> None:
    """A model that lets others run before it answers."""
    for _ in range(3):
        await anyio.lowlevel.checkpoint()


async def until(is_so: Callable[[], bool]) -> None:
    """Returns when it is so."""
    with anyio.fail_after(60):
        while not is_so():
            await anyio.lowlevel.checkpoint()


async def test_a_flood_of_one_subjects_sessions_delays_nobody_by_more_than_a_turn_each(tmp_path: Path) -> None:
    """Regression: turns waited in one line for all, so a message waited for all that anybody had sent before."""
    hold, asked, running = Hold("flood", wo_type="classify"), list[str](), 4

    async def gate(request: PromptRequest) -> None:
        if request.wo_type == "classify":
            asked.append(request.variables["user_message"])
        await hold(request)
        await yields(request)

    async def say(message: str, subject_id: str) -> None:
        await runtime.supervisor().handle_turn(message, subject_id=subject_id)

    model = ScriptedProvider(echo, gate=gate)
    limits = {"max_running_turns": running}
    async with open_scripted(tmp_path, model, limits=limits) as runtime, anyio.create_task_group() as tasks:
        await say("hello", BYSTANDER)
        for _ in range(MESSAGES):
            tasks.start_soon(say, "flood", "mallory")
        await until(lambda: runtime.statistics()["waiting_turns"] == MESSAGES - running)
        tasks.start_soon(say, "hello again", BYSTANDER)
        await until(lambda: runtime.statistics()["waiting_turns"] == MESSAGES - running + 1)
        hold.released["flood"].set()
    assert asked.count("flood") == MESSAGES
    turns_before = asked.index("hello again") - asked.index("flood")
    assert turns_before <= 3 * running, "it waited for those who ran, and for the next of each"


async def test_a_full_line_of_one_subject_has_places_for_others(tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()

    async def say(subject_id: str) -> None:
        try:
            await runtime.supervisor().handle_turn("hello", subject_id=subject_id)
        except Overloaded:
            outcomes[f"{subject_id} was turned away"] += 1

    hold = Hold("hello")
    limits = {"max_running_turns": 1, "max_waiting_turns": 40}
    model = ScriptedProvider(echo, gate=hold)
    async with open_scripted(tmp_path, model, limits=limits) as runtime, anyio.create_task_group() as tasks:
        for _ in range(MESSAGES):
            tasks.start_soon(say, "mallory")
        await until(lambda: outcomes["mallory was turned away"] >= MESSAGES - 1 - 30)
        for number in range(10):
            tasks.start_soon(say, f"{BYSTANDER}-{number}")
        await until(lambda: runtime.statistics()["waiting_turns"] >= 40)
        hold.released["hello"].set()
    assert outcomes == {"mallory was turned away": MESSAGES - 1 - 30}


class Readers:
    """Those who read a turn until its text begins, and stop there."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.stopped = 0

    async def read(self, message: str) -> None:
        """One of them."""
        async with aclosing(self._runtime.supervisor().stream_turn(message, subject_id="mallory")) as updates:
            async for update in updates:
                if isinstance(update, TextDelta):
                    self.stopped += 1
                    await anyio.sleep_forever()


def long(request: PromptRequest) -> Any:
    return {"response_text": "y " * 500} if request.wo_type == "synthesize" else echo(request)


@pytest.mark.parametrize("narrow", ["turns", "calls of the provider"])
async def test_readers_who_stop_reading_leave_room_for_others(tmp_path: Path, narrow: str) -> None:
    """Regression: a reader who stops keeps its turn's slot, and its provider's, until the deadline of the turn."""
    config = scripted_config(tmp_path, limits={"stream_buffer": 1, **({"max_running_turns": 8} if narrow == "turns" else {})})
    if narrow != "turns":
        provider = ProviderConfig(kind="offline", max_concurrency=8)
        router = RouterConfig(default_provider="scripted", providers={"scripted": provider})
        config = config.model_copy(update={"router": router})
    providers = {"scripted": ScriptedProvider(long)}
    async with open_runtime(config, providers=providers) as runtime, anyio.create_task_group() as tasks:
        readers = Readers(runtime)
        for number in range(20):
            tasks.start_soon(readers.read, f"message {number}")
        await until(lambda: readers.stopped >= 7)
        with anyio.fail_after(10):
            for _ in range(3):
                result = await runtime.supervisor().handle_turn("hello", subject_id=BYSTANDER)
                assert result.response == "y " * 500
        tasks.cancel_scope.cancel()


async def test_a_fork_into_thousands_is_refused(tmp_path: Path) -> None:
    """Regression: ten thousand children took 45 s of CPU, in which nobody was served."""
    async with open_scripted(tmp_path, **ENFORCE) as runtime, bystander(runtime):
        supervisor = runtime.supervisor()
        session_id = await supervisor.start_session(subject_id="mallory")
        intent_id = await supervisor.declare_intent(session_id, "everything")
        with pytest.raises(CallerError, match="at most 100"):
            await supervisor.fork_intent(session_id, intent_id, [f"thing {number}" for number in range(10_000)])
        await supervisor.fork_intent(session_id, intent_id, ["a", "b"], active=0)
        try:
            await supervisor.handle_turn("hello", session_id=session_id)
        except KitchenerError as error:
            pytest.fail(f"the session cannot be used: {error}")


async def test_agent_classes_that_callers_name_are_bounded(tmp_path: Path) -> None:
    """Regression: 71 of them used up the 1,024 files that a process may have open, and with them everybody's ledgers."""
    assert LimitsConfig().max_agent_classes == 16
    config = scripted_config(tmp_path, limits={"max_agent_classes": 3}, has_classes=False)
    opened: list[str] = []
    async with open_runtime(config, providers={"scripted": ScriptedProvider(echo)}) as runtime, bystander(runtime):
        for number in range(8):
            name = f"RESIDENT:mallory-{number}"
            try:
                await runtime.supervisor(name).handle_turn("hello", subject_id="mallory")
            except CallerError as error:
                refusal = str(error)
                with pytest.raises(CallerError):
                    runtime.ledgers(name)
            else:
                opened.append(name)
        assert len(opened) == 3
        assert "limits.max_agent_classes = 3" in refusal
        assert '[agents."RESIDENT:mallory-7"]' in refusal
        for name in ["ADMIN", *opened]:
            assert (await runtime.supervisor(name).handle_turn("hello", subject_id="ada")).response == "echo: hello"


async def test_where_no_agent_class_is_configured_the_default_one_takes_no_place(tmp_path: Path) -> None:
    limits = LimitsConfig(max_agent_classes=0)
    async with open_runtime(RuntimeConfig(plane_root=str(tmp_path), limits=limits)) as runtime:
        await runtime.supervisor().handle_turn("hello", subject_id="ada")
        with pytest.raises(CallerError, match="max_agent_classes = 0"):
            runtime.supervisor("RESIDENT:anybody")


async def test_an_erasure_opens_every_class_on_record_whatever_the_limit(tmp_path: Path) -> None:
    """An agent class that is not configured any more may hold what a subject said: no limit keeps it readable."""
    classes = [f"RESIDENT:once-{number}" for number in range(3)]
    ledger = LedgerConfig(durability="none", keyring=str(tmp_path / "keys"))
    for limit in (3, 1):
        limits = {"max_agent_classes": limit}
        config = scripted_config(tmp_path / "root", limits=limits, ledger=ledger, has_classes=limit == 1)
        async with open_runtime(config, providers={"scripted": ScriptedProvider(echo)}) as runtime:
            if limit == 3:
                for name in classes:
                    await runtime.supervisor(name).handle_turn("hello", subject_id="ada")
            else:
                await runtime.erase_subject("ada")
                for name in classes:
                    erased = await read_all(runtime.ledgers(name).ho2m, entry_type=events.SUBJECT_ERASED)
                    assert len(erased) == 1
