"""Consolidation: one work order for each signal that is ripe, once, under a session of its own, after the reply.

Explained in docs/memory.md.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener.errors import CallerError, UnknownSession
from kitchener.ids import memory_namespace
from kitchener.ledger import LedgerReader
from kitchener.memory import HO3Memory
from kitchener.records import events
from kitchener.records.prompt import PromptRequest
from kitchener.records.turn import TurnCompleted, TurnResult, TurnUpdate
from kitchener.runtime import Runtime
from kitchener.runtime.root_layout import sealer_of
from kitchener.testing import FakeClock
from tests.acceptance.conftest import OpenRuntime
from tests.acceptance.memory.memory_kit import (
    ADA,
    EASY,
    LESSON,
    MANUAL,
    QUESTIONS,
    Pause,
    asked,
    check_all,
    knows,
    ledger_entries,
    lives,
    open_remembering,
    overlays,
    say,
    signals,
    student,
)
from tests.acceptance.stack import QUESTION, QUICK, places, read_all, scripted_config

DONE = ["WO_PLANNED", "WO_DISPATCHED", "WO_COMPLETED"]


async def test_consolidation_dispatches_wo(tmp_path: Path) -> None:
    """HO1 gets a work order of type consolidate under its contract, in the background lane, with the evidence and no intent."""
    async with open_remembering(tmp_path) as (stack, _):
        results = [await stack.turn(f"message {n}", subject_id="ada") for n in range(3)]
        (wo,) = await stack.supervisor.run_consolidation([QUESTIONS], namespace=ADA)
        (given,) = [each for each in stack.executor.given if each.wo_type == "consolidate"]
        (planned,) = await stack.payloads(events.WO_PLANNED, session_id=wo.session_id)
        (dispatched,) = await stack.payloads(events.WO_DISPATCHED, session_id=wo.session_id)
    assert (given.wo_id, given.wo_type, given.state) == (wo.wo_id, "consolidate", "dispatched")
    assert given.constraints.prompt_contract_id == "PRC-CONSOLIDATE-001"
    assert given.constraints.domain_tags == ("consolidation",)
    assert given.intent_id is None
    assert (wo.state, wo.output_result) == ("completed", LESSON)
    assert dispatched["lane"] == "background"
    assert "input_context" not in planned
    shown = given.input_context
    assert (shown["signal_id"], shown["count"], shown["session_count"]) == (QUESTIONS, 3, 3)
    assert shown["session_ids"] == [result.session_id for result in results]
    assert [event["user_message"] for event in shown["recent_events"]] == [f"message {n}" for n in range(3)]
    assert [event["turn_id"] for event in shown["recent_events"]] == [result.turn_id for result in results]
    assert [event["co_signals"] for event in shown["recent_events"]] == [["outcome:success"]] * 3


async def test_consolidation_exactly_one(tmp_path: Path) -> None:
    """Two signals crossed, one did not, one is named twice, one nobody knows: two work orders, each with its overlay."""
    async with open_remembering(tmp_path, memory_settings={"gate_overrides": {"task": {"count": 9, "sessions": 9}}}) as (
        stack,
        memory,
    ):
        for signal in ("domain:a", "task:b"):
            await memory.log_signal(signal, "SES-0000000a", namespace=ADA)
        await stack.turn("hello", subject_id="ada")
        named = [QUESTIONS, "domain:a", QUESTIONS, "task:b", "domain:nobody", "outcome:success"]
        done = await stack.supervisor.run_consolidation(named, namespace=ADA)
        given = [wo for wo in stack.executor.given if wo.wo_type == "consolidate"]
    assert [wo.input_context["signal_id"] for wo in given] == [QUESTIONS, "domain:a"]
    assert [(wo.wo_id, wo.state) for wo in done] == [(wo.wo_id, "completed") for wo in given]
    assert [learned["signal_id"] for learned in overlays(tmp_path)] == [QUESTIONS, "domain:a"]
    assert list(lives(tmp_path).values()) == [DONE, DONE]


async def test_consolidation_idempotent(tmp_path: Path) -> None:
    """A second call within the window does nothing, here or after a restart, whatever was logged between."""
    async with open_remembering(tmp_path) as (stack, _):
        await stack.turn(subject_id="ada")
        assert len(await stack.supervisor.run_consolidation([QUESTIONS], namespace=ADA)) == 1
        before = ledger_entries(tmp_path)
        assert await stack.supervisor.run_consolidation([QUESTIONS], namespace=ADA) == []
        assert ledger_entries(tmp_path) == before
        result = await stack.turn(subject_id="ada")
    async with open_remembering(tmp_path) as (stack, _):
        assert await stack.supervisor.run_consolidation([QUESTIONS], namespace=ADA) == []
        assert stack.executor.given == []
    assert result.consolidation_candidates == ()
    assert len(overlays(tmp_path)) == 1


async def test_consolidation_overlay_has_source_ids(tmp_path: Path) -> None:
    """The overlay names the events that were counted, all of its own namespace, whatever the model says."""
    lesson = {**LESSON, "source_event_ids": ["EVT-0000000000000000"], "source_signal_ids": ["domain:invented"], "count": 99}
    async with open_remembering(tmp_path) as (stack, memory):
        stack.executor.script = lambda wo: lesson if wo.wo_type == "consolidate" else {"response_text": "x", **QUESTION}
        for subject in ("ada", "bob"):
            for _ in range(3):
                await stack.turn(subject_id=subject)
        gate = await memory.check_gate(QUESTIONS, namespace=ADA)
        gate_ts = memory.last_logged_ts
        await stack.supervisor.run_consolidation([QUESTIONS], namespace=ADA, gate_ts=gate_ts)
    (learned,) = overlays(tmp_path)
    logged = [each for each in signals(tmp_path) if (each["namespace"], each["signal_id"]) == (ADA, QUESTIONS)]
    assert learned["source_event_ids"] == [each["event_id"] for each in logged] != []
    assert learned["source_signal_ids"] == [QUESTIONS]
    assert learned["gate_snapshot"] == {"count": gate.count, "sessions": gate.session_count} == {"count": 3, "sessions": 3}
    assert (learned["window_start"], learned["window_end"]) == (logged[0]["timestamp"], gate_ts)
    assert learned["namespace"] == ADA


async def test_a_signal_is_learned_from_again_in_a_later_window(scripted: OpenRuntime, tmp_path: Path) -> None:
    """After `gate_window_hours` the gate opens again: a new artifact, and the earlier one no longer speaks."""
    clock, provider = FakeClock(), student()
    ledger = QUICK.model_copy(update={"max_clock_jump_s": 10_000_000})
    async with scripted(provider, clock=clock, ledger=ledger, **EASY, ho3_gate_window_hours=24) as runtime:
        for _ in range(3):
            await say(runtime)
            await runtime.drain()
            clock.advance(25 * 3_600)
        active = await runtime.memory().read_overlays(namespace=ADA)
        everything = await runtime.memory().read_overlays(active_only=False, namespace=ADA)
    assert (len(active), len(everything), len(asked(provider))) == (1, 3, 3)
    assert active[0] == everything[-1]
    assert len({each.artifact_id for each in everything}) == 3
    assert list(lives(tmp_path).values()) == [DONE] * 3


async def together(calls: int, call: Any) -> None:
    """So many calls at once, and none of them for ever."""
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for n in range(calls):
                tasks.start_soon(call, n)


async def test_twenty_sessions_crossing_at_once_give_one_consolidation(tmp_path: Path, scripted: OpenRuntime) -> None:
    """All of them see the gate open; the model is asked once, one overlay is written, one work order stands in the record."""
    pause, results = Pause(), list[TurnResult]()
    provider = student(gate=pause)
    async with scripted(provider, **{**EASY, "ho3_gate_count_threshold": 20, "ho3_gate_session_threshold": 5}) as runtime:

        async def call(n: int) -> None:
            results.append(await say(runtime, f"message {n}"))

        await together(20, call)
        await pause.arrived.wait()
        await together(20, call)
        assert sum(QUESTIONS in result.consolidation_candidates for result in results) >= 20
        pause.released.set()
        with anyio.fail_after(10):
            await runtime.drain()
        await together(20, call)
        await runtime.drain()
        assert runtime.statistics()["pending_consolidations"] == 0
    assert [request.variables["signal_id"] for request in asked(provider)] == [QUESTIONS]
    assert len(overlays(tmp_path)) == 1
    assert list(lives(tmp_path).values()) == [DONE]
    check_all(tmp_path)


async def test_asked_for_while_it_runs_by_itself_it_is_done_once(tmp_path: Path, scripted: OpenRuntime) -> None:
    """Explicit calls beside the automatic one, all at once, leave one work order and one overlay."""
    pause = Pause()
    provider = student(gate=pause)
    async with scripted(provider, **EASY) as runtime:
        await say(runtime)
        done: list[Any] = []

        async def call(n: int) -> None:
            done.extend(await runtime.supervisor().run_consolidation([QUESTIONS], namespace=ADA))

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                for n in range(10):
                    tasks.start_soon(call, n)
                await pause.arrived.wait()
                await anyio.wait_all_tasks_blocked()
                pause.released.set()
            await runtime.drain()
    assert len(asked(provider)) == 1
    assert len(overlays(tmp_path)) == 1
    assert list(lives(tmp_path).values()) == [DONE]
    assert len(done) <= 1


async def test_two_subjects_are_learned_about_side_by_side(tmp_path: Path, scripted: OpenRuntime) -> None:
    """The same signal of two subjects is two consolidations, under two sessions, and neither waits for the other."""
    provider = student()
    async with scripted(provider, **EASY) as runtime:

        async def call(n: int) -> None:
            await say(runtime, subject_id=("ada", "bob")[n % 2])

        await together(6, call)
        await runtime.drain()
    assert Counter(learned["namespace"] for learned in overlays(tmp_path)) == {ADA: 1, memory_namespace("ADMIN", "bob"): 1}
    assert len(lives(tmp_path)) == 2
    assert {request.subject_id for request in asked(provider)} == {"ada", "bob"}


async def test_it_runs_under_a_session_of_its_own(tmp_path: Path, scripted: OpenRuntime) -> None:
    """A conversation that goes on meanwhile keeps its numbers and its fence, and never sees an entry of the consolidation."""
    pause = Pause()
    provider = student(gate=pause)
    async with scripted(provider, **EASY) as runtime:
        supervisor = runtime.supervisor()
        session_id = await supervisor.start_session(subject_id="ada")
        turns = [await supervisor.handle_turn("one", session_id=session_id)]
        await pause.arrived.wait()
        turns += [await supervisor.handle_turn(message, session_id=session_id) for message in ("two", "three")]
        pause.released.set()
        await runtime.drain()
        turns.append(await supervisor.handle_turn("four", session_id=session_id))
        ledger = runtime.ledgers().ho2m
        entries = await read_all(ledger, session_id=session_id)
        (cons,) = {entry.session_id for entry in await read_all(ledger) if str(entry.session_id).startswith("CONS-")}
        own = await read_all(ledger, session_id=cons)
        with pytest.raises(CallerError):
            await supervisor.session(str(cons))
        with pytest.raises(CallerError):
            await supervisor.handle_turn("hello", session_id=cons)
        with pytest.raises(UnknownSession):
            await supervisor.session("SES-00000000")
        listed = [entry.entity_id for entry in await read_all(ledger, key="sessions")]
    assert [turn.turn_id for turn in turns] == [f"T-{session_id[4:]}-{n:06d}" for n in range(1, 5)]
    numbers = [wo["wo_id"] for turn in turns for wo in turn.wo_chain_summary]
    assert numbers == [f"WO-{session_id}-{n:03d}" for n in range(1, 9)]
    assert [entry.entry_type for entry in own] == DONE
    assert [entry.entity_id for entry in own] == [f"WO-{cons}-001"] * 3
    assert len(str(cons)) == len("CONS-") + 16
    assert all(entry.payload.get("turn_id") is None for entry in own)
    assert {(entry.payload["session_id"], entry.payload["subject_id"]) for entry in own} == {(cons, "ada")}
    assert listed == [session_id]
    assert not any(entry.entity_id.startswith("WO-CONS") for entry in entries)
    for request in asked(provider, "synthesize"):
        assert str(cons) not in str(request.variables)
    assert "four" in str(asked(provider, "synthesize")[-1].variables)
    assert knows(LESSON["context_line"])(asked(provider, "synthesize")[-1])


async def test_it_begins_after_the_last_update_of_a_stream(scripted: OpenRuntime) -> None:
    """While TurnCompleted has not gone out to the reader nothing is consolidated, however slowly they read; then it is."""
    provider, asked_at, updates = student(), list[int](), list[TurnUpdate]()
    async with scripted(provider, **EASY, limits={"stream_buffer": 1}) as runtime:
        with anyio.fail_after(10):
            async for update in runtime.supervisor().stream_turn("hello", subject_id="ada"):
                updates.append(update)
                await anyio.wait_all_tasks_blocked()
                asked_at.append(len(asked(provider)))
        assert isinstance(updates[-1], TurnCompleted)
        assert updates[-1].result.consolidation_candidates == (QUESTIONS,)
        await runtime.drain()
    assert len(asked_at) > 4
    assert asked_at[:-2] == [0] * (len(asked_at) - 2)  # the last update but one leaves room for the last in the buffer
    assert len(asked(provider)) == 1


async def test_a_duplicate_starts_no_second_consolidation(tmp_path: Path, scripted: OpenRuntime) -> None:
    """Those who join a running turn, and those who ask again later, get the same candidates and start nothing."""

    def classification(message: str) -> dict[str, Any]:
        return {**QUESTION, "speech_act": message}

    provider = student({**LESSON, "category": "no such category"}, classification)
    async with scripted(provider, **EASY, consolidation_deadline_s=0.000_002) as runtime:
        results: list[TurnResult] = []

        async def call(n: int) -> None:
            results.append(await runtime.supervisor().handle_turn("question", subject_id="ada", idempotency_key="k"))

        await together(5, call)
        await runtime.drain()
        await call(5)
        await runtime.drain()
    assert results == [results[0]] * 6
    assert results[0].consolidation_candidates == (QUESTIONS,)
    assert len(lives(tmp_path)) == 1


async def test_drain_waits_for_what_is_pending(scripted: OpenRuntime, tmp_path: Path) -> None:
    """drain() began while the turn was running: it returns when the consolidation that the turn started is over."""
    pause, steps, running, go_on = Pause(), list[str](), anyio.Event(), anyio.Event()

    async def gate(request: PromptRequest) -> None:
        if request.wo_type == "synthesize":
            running.set()
            await go_on.wait()
        await pause(request)

    async with scripted(student(gate=gate), **EASY) as runtime:

        async def drain() -> None:
            await runtime.drain()
            steps.append("drained")

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(say, runtime)
                await running.wait()
                tasks.start_soon(drain)
                await anyio.wait_all_tasks_blocked()
                go_on.set()
                await pause.arrived.wait()
                await anyio.wait_all_tasks_blocked()
                assert runtime.statistics()["pending_consolidations"] == 1
                steps.append("released")
                pause.released.set()
        assert steps == ["released", "drained"]
        assert len(overlays(tmp_path)) == 1
        assert runtime.statistics()["pending_consolidations"] == 0


async def hold_one_open(runtime: Runtime, pause: Pause) -> None:
    """Returns while a consolidation waits for its model."""
    await say(runtime)
    with anyio.fail_after(10):
        await pause.arrived.wait()


async def test_closing_ends_a_consolidation_on_record_and_a_later_signal_finds_it(
    tmp_path: Path, scripted: OpenRuntime
) -> None:
    """Past the grace the runtime closes without it: WO_ABANDONED, no overlay; after a restart the next signal learns it."""
    pause = Pause()
    with anyio.fail_after(20):
        async with scripted(student(gate=pause), **EASY, limits={"shutdown_grace_s": 0.01, "abort_grace_s": 5}) as runtime:
            await hold_one_open(runtime, pause)
    assert overlays(tmp_path) == []
    assert list(lives(tmp_path).values()) == [["WO_PLANNED", "WO_DISPATCHED", "WO_ABANDONED:cancelled"]]
    check_all(tmp_path)
    provider = student()
    async with scripted(provider, **EASY) as runtime:
        await say(runtime)
        await runtime.drain()
    assert (len(asked(provider)), len(overlays(tmp_path))) == (1, 1)
    assert [wo_id[-4:] for wo_id in lives(tmp_path)] == ["-001", "-002"]
    assert list(lives(tmp_path).values())[1] == DONE
    check_all(tmp_path)


async def test_closing_waits_for_a_consolidation_within_the_grace(tmp_path: Path, scripted: OpenRuntime) -> None:
    """One that ends within the grace period is finished, and what it learned is on disk."""
    pause = Pause()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks, scripted(student(gate=pause), **EASY) as runtime:
            await hold_one_open(runtime, pause)

            async def release() -> None:
                await anyio.wait_all_tasks_blocked()
                pause.released.set()

            tasks.start_soon(release)
    assert len(overlays(tmp_path)) == 1
    assert list(lives(tmp_path).values()) == [DONE]
    check_all(tmp_path)


async def test_the_program_may_look_without_a_runtime(tmp_path: Path, scripted: OpenRuntime) -> None:
    """What was learned is there for a memory opened alone, and for a reader of the supervisor's ledger, in the same words."""
    async with scripted(student(), **EASY) as runtime:
        await say(runtime)
        await runtime.drain()
    keys = sealer_of(scripted_config(tmp_path))
    async with HO3Memory.open(tmp_path, ledger_config=QUICK, sealer=keys) as memory:
        (overlay,) = await memory.read_active_biases(namespace=ADA)
    assert (overlay.line, overlay.signal_id) == (LESSON["context_line"], QUESTIONS)
    async with LedgerReader.open(places(tmp_path)["ho2m"], ledger_id="HO2M:ADMIN") as reader:
        (completed,) = [entry async for entry in reader.read() if entry.entity_id.startswith("WO-CONS")][-1:]
    assert completed.entry_type == events.WO_COMPLETED


async def test_a_moment_without_a_zone_is_refused(scripted: OpenRuntime) -> None:
    """The caller's `gate_ts` decides the window, so it has to be a moment."""
    async with scripted(student(), **MANUAL) as runtime:
        await say(runtime)
        for moment in ("2026-01-01T00:00:00", "yesterday", ""):
            with pytest.raises(CallerError):
                await runtime.supervisor().run_consolidation([QUESTIONS], namespace=ADA, gate_ts=moment)
        assert len(await runtime.supervisor().run_consolidation([QUESTIONS], namespace=ADA)) == 1


async def test_two_spellings_of_a_signal_are_one(tmp_path: Path, scripted: OpenRuntime) -> None:
    """Calls at once that name the same signal in two spellings give one work order, and it keeps its end."""
    pause = Pause()
    provider = student(gate=pause)
    spellings = ("domain:two words", "domain:two_words", "domain:two?words")
    async with scripted(provider, **MANUAL) as runtime:
        await runtime.memory().log_signal("domain:two words", "SES-0000000a", namespace=ADA)

        async def call(n: int) -> None:
            await runtime.supervisor().run_consolidation(spellings[n:] + spellings[:n], namespace=ADA)

        async def release() -> None:
            await pause.arrived.wait()
            await anyio.wait_all_tasks_blocked()
            pause.released.set()

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(release)
                for n in range(3):
                    tasks.start_soon(call, n)
    assert len(asked(provider)) == 1
    assert list(lives(tmp_path).values()) == [DONE]
    assert len(overlays(tmp_path)) == 1


async def test_a_window_long_past_is_learned_from_once_too(tmp_path: Path, scripted: OpenRuntime) -> None:
    """A program that catches up on recorded candidates may repeat itself: each recorded `gate_ts` is one consolidation."""
    provider = student()
    async with scripted(provider, **MANUAL, ho3_gate_window_hours=24) as runtime:
        await say(runtime)
        for moment in ("2026-03-01T12:00:00+00:00", "2026-03-01T12:00:00+00:00", "2026-03-01T13:00:00Z"):
            await runtime.supervisor().run_consolidation([QUESTIONS], namespace=ADA, gate_ts=moment)
        assert len(asked(provider)) == 1
        await runtime.supervisor().run_consolidation([QUESTIONS], namespace=ADA, gate_ts="2026-03-05T12:00:00+00:00")
        assert len(asked(provider)) == 2
    assert [learned["window_end"][:10] for learned in overlays(tmp_path)] == ["2026-03-01", "2026-03-05"]
    assert list(lives(tmp_path).values()) == [DONE, DONE]
