"""A turn with long-term memory: the lines that it recalls before the reply, and the signals that it logs.

Explained in docs/memory.md.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kitchener import tool
from kitchener.errors import ProviderError
from kitchener.memory import HO3Memory
from kitchener.records import events
from kitchener.records.prompt import PromptRequest
from kitchener.records.turn import TurnResult
from kitchener.runtime import Runtime
from kitchener.testing import FakeClock, ScriptedProvider, use_tool
from tests.acceptance.conftest import OpenRuntime, OpenStack
from tests.acceptance.memory.memory_kit import (
    ADA,
    EASY,
    LESSON,
    MANUAL,
    QUESTIONS,
    Around,
    asked,
    knows,
    open_remembering,
    overlays,
    say,
    signal_ids,
    signals,
    student,
)
from tests.acceptance.stack import QUESTION, QUICK, ScriptedExecutor, fitting, read_all, synthesizes
from tests.shared.payloads import payload_of

LEGIBLE = QUICK.model_copy(update={"seal": False})
"""For what a test reads in the files themselves: content and the labels of signals stand there as they were said."""

LEAPING = LEGIBLE.model_copy(update={"max_clock_jump_s": 10_000_000})
"""For a clock that is moved by hand, faster than time passes."""


class Counted(Around):
    """A memory that notes what it was asked."""

    def __init__(self, memory: HO3Memory) -> None:
        super().__init__(memory)
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.memory, name)
        if not callable(found):
            return found

        def noted(*args: Any, **options: Any) -> Any:
            self.calls.append((name, args[0] if args else None))
            return found(*args, **options)

        return noted

    def asked(self, name: str) -> list[Any]:
        """What a method was called with first."""
        return [first for called, first in self.calls if called == name]


def labelled(domain: Any = None, task: Any = None, speech_act: str = "question") -> Mapping[str, Any]:
    """A classification with labels."""
    labels = {kind: label for kind, label in (("domain", domain), ("task", task)) if label is not None}
    return {**QUESTION, "speech_act": speech_act, "labels": labels}


async def teach(runtime: Runtime, line: str, signal: str = "domain:taught", **fields: Any) -> None:
    """Has the memory hold a line about ada, learned from a signal of its own."""
    memory = runtime.memory()
    event = await memory.log_signal(signal, "SES-0000000a", namespace=ADA)
    lesson, now = {**LESSON, "context_line": line, **fields}, memory.last_logged_ts
    await memory.log_overlay(
        {
            "signal_id": signal,
            "artifact_type": lesson["category"],
            "labels": lesson["labels"],
            "weight": lesson["salience_weight"],
            "scope": "agent" if any(lesson["labels"].values()) else "global",
            "context_line": line,
            "source_signal_ids": (signal,),
            "source_event_ids": (event,),
            "gate_snapshot": {"count": 1, "sessions": 1},
            "model": "by hand",
            "prompt_pack_version": "none",
            "consolidation_event_ts": now,
            "salience_weight": lesson["salience_weight"],
            "decay_modifier": lesson["decay_modifier"],
            "content": {"bias": line, "category": lesson["category"]},
            "window_start": now,
            "window_end": now,
        },
        namespace=ADA,
    )


class Forbidden:
    """A memory that must not be touched."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"memory.{name} was used")


async def test_ho3_disabled_skips_all(tmp_path: Path, by_hand: OpenStack) -> None:
    """Without a memory object there is nothing to call: the turn is as ever, and no file of a memory appears."""
    async with by_hand(ScriptedExecutor(), settings={"ho3_enabled": True}) as stack:
        result = await stack.turn("hello")
        (synthesize,) = [wo for wo in stack.executor.given if wo.wo_type == "synthesize"]
    assert (result.error, result.consolidation_candidates) == (None, ())
    assert "ho3_biases" not in synthesize.input_context["assembled_context"]
    assert not (tmp_path / "HOT").exists()


async def test_ho3_enabled_flag_false_skips(by_hand: OpenStack) -> None:
    """With a memory object and the flag off, not one of its methods or attributes is used."""
    async with by_hand(ScriptedExecutor(), ho3_memory=Forbidden(), settings={"ho3_enabled": False}) as stack:
        result = await stack.turn("hello")
        (synthesize,) = [wo for wo in stack.executor.given if wo.wo_type == "synthesize"]
    assert (result.error, result.response, result.consolidation_candidates) == (None, "re: hello", ())
    assert "ho3_biases" not in synthesize.input_context["assembled_context"]


async def test_signal_from_classification(tmp_path: Path, scripted: OpenRuntime) -> None:
    """The speech act becomes a signal, with its session, turn and subject."""
    provider = student(classification={**QUESTION, "speech_act": "tool_query"})
    async with scripted(provider, ledger=LEGIBLE, ho3_enabled=True) as runtime:
        result = await say(runtime)
    (logged,) = [payload for payload in signals(tmp_path) if payload["signal_id"].startswith("intent:")]
    assert logged["signal_id"] == "intent:tool_query"
    assert (logged["session_id"], logged["namespace"]) == (result.session_id, ADA)
    assert logged["turn_id"] == result.turn_id
    assert '"intent:tool_query"' in (tmp_path / "HOT" / "memory" / "signals.jsonl").read_text()


async def test_intent_signal_missing_classification(tmp_path: Path, scripted: OpenRuntime) -> None:
    """A message that nothing could classify gives no intent signal, and the turn goes on without an error."""

    def answer(request: PromptRequest) -> Any:
        if request.wo_type == "classify":
            return ProviderError("scripted", "refused", "no")
        return {"response_text": "hello yourself"}

    async with scripted(ScriptedProvider(answer), ho3_enabled=True) as runtime:
        result = await say(runtime)
    assert (result.response, result.error) == ("hello yourself", None)
    assert signal_ids(tmp_path) == ["outcome:success"]


async def test_signal_logging_does_not_affect_response(tmp_path: Path, scripted: OpenRuntime) -> None:
    """The same message has the same response, chain and cost with and without memory."""
    results = []
    for enabled in (False, True):
        root = tmp_path / str(enabled)
        async with scripted(
            student(), ho3_enabled=enabled, ho2m_path=f"{root}/2.jsonl", ho1m_path=f"{root}/1.jsonl"
        ) as runtime:
            results.append(await say(runtime, "what is new?"))
    without, with_memory = results
    assert with_memory.response == without.response == "echo: what is new?"
    assert with_memory.cost_summary == without.cost_summary
    assert [wo["wo_type"] for wo in with_memory.wo_chain_summary] == [wo["wo_type"] for wo in without.wo_chain_summary]
    assert signal_ids(tmp_path) == [QUESTIONS, "outcome:success"]


async def test_ho3_read_injects_biases(scripted: OpenRuntime) -> None:
    """What was learned about a subject stands in the input of their next reply, and nowhere else; the record names it."""
    provider = student()
    async with scripted(provider, ho3_enabled=True) as runtime:
        await teach(runtime, "Prefers short answers.")
        result = await say(runtime)
        (artifact,) = await runtime.memory().read_overlays(namespace=ADA)
        planned = await read_all(runtime.ledgers().ho2m, session_id=result.session_id, entry_type=events.WO_PLANNED)
    assert all(map(knows("Prefers short answers."), asked(provider, "synthesize")))
    assert "Prefers short answers." not in str(asked(provider, "classify")[0].messages)
    by_type = {payload_of(entry)["wo_type"]: payload_of(entry) for entry in planned}
    assert by_type["synthesize"]["attention"]["biases"] == [artifact.artifact_id]


async def test_gate_check_runs_post_turn(tmp_path: Path) -> None:
    """Each signal of the turn has its gate checked once, after all of them were logged and the reply was fixed."""
    async with open_remembering(tmp_path, wrap=Counted) as (stack, memory):
        await stack.turn("hello", subject_id="ada")
        expected = [QUESTIONS, "outcome:success"]
        assert memory.asked("log_turn") == [expected]
        assert memory.asked("check_gate") == expected
        order = [name for name, _ in memory.calls if name in ("read_active_biases", "log_turn", "check_gate")]
        assert order == ["read_active_biases", "log_turn", *["check_gate"] * 2]


async def test_gate_false_empty_candidates(scripted: OpenRuntime) -> None:
    """Below the thresholds a turn names nothing to be learned from."""
    async with scripted(student(), ho3_enabled=True) as runtime:
        results = [await say(runtime) for _ in range(4)]
    assert [result.consolidation_candidates for result in results] == [()] * 4


async def test_gate_true_populates_candidates(scripted: OpenRuntime) -> None:
    """The turn that brings a signal over its thresholds names it, in its result and on record."""
    async with scripted(student(), ho3_enabled=True, consolidation="manual") as runtime:
        results = [await say(runtime) for _ in range(5)]
        completed = await read_all(runtime.ledgers().ho2m, entry_type=events.TURN_COMPLETED)
    assert [result.consolidation_candidates for result in results] == [()] * 4 + [(QUESTIONS,)]
    assert completed[-1].payload["consolidation_candidates"] == [QUESTIONS]
    assert TurnResult.from_payload(completed[-1].payload) == results[-1]


async def test_many_events_of_one_session_open_no_gate(scripted: OpenRuntime) -> None:
    """Recurrence within one conversation is no habit: the thresholds ask for sessions as well."""
    async with scripted(student(), ho3_enabled=True) as runtime:
        supervisor = runtime.supervisor()
        session_id = await supervisor.start_session(subject_id="ada")
        results = [await supervisor.handle_turn("hello", session_id=session_id) for _ in range(10)]
    assert [result.consolidation_candidates for result in results] == [()] * 10


async def test_turn_result_has_field(runtime: Runtime) -> None:
    """`consolidation_candidates` is there and empty where nothing is remembered."""
    result = await runtime.supervisor().handle_turn("hello")
    assert result.consolidation_candidates == ()
    assert result.as_payload()["consolidation_candidates"] in ((), [])


async def test_domain_signal_logged(tmp_path: Path, scripted: OpenRuntime) -> None:
    """The domain label of the classification becomes a signal."""
    provider = student(classification=labelled(domain="packaging"))
    async with scripted(provider, ledger=LEGIBLE, ho3_enabled=True) as runtime:
        await say(runtime)
    assert signal_ids(tmp_path) == [QUESTIONS, "domain:packaging", "outcome:success"]


async def test_task_signal_logged(tmp_path: Path, scripted: OpenRuntime) -> None:
    """The task label becomes a signal, made to fit the grammar of signal ids."""
    provider = student(classification=labelled(task="write a report: now"))
    async with scripted(provider, ledger=LEGIBLE, ho3_enabled=True) as runtime:
        await say(runtime)
    assert signal_ids(tmp_path) == [QUESTIONS, "task:write_a_report_now", "outcome:success"]


async def test_no_domain_signal_without_labels(tmp_path: Path, scripted: OpenRuntime) -> None:
    """No label, no label signal; a label without a letter or digit is dropped, and the turn has no error."""
    seen, given = [], list[Mapping[str, Any]](({}, {"domain": "  ", "task": "???"}, {"domain": []}))
    for labels in given:
        async with scripted(student(classification={**QUESTION, "labels": labels}), ho3_enabled=True) as runtime:
            seen.append((await say(runtime)).error)
    assert seen == [None] * 3
    assert signal_ids(tmp_path) == [QUESTIONS, "outcome:success"] * 3


async def test_outcome_signal_logged(tmp_path: Path) -> None:
    """The end of the synthesize work order becomes a signal: success, or failed where no reply was acceptable."""
    async with open_remembering(tmp_path, ScriptedExecutor(synthesizes({"response_text": "fine"}))) as (stack, _):
        assert (await stack.turn("one", subject_id="ada")).error is None
    async with open_remembering(tmp_path, ScriptedExecutor(synthesizes({"response_text": ""}))) as (stack, _):
        assert (await stack.turn("two", subject_id="ada")).error is not None
    assert [each for each in signal_ids(tmp_path) if each.startswith("outcome:")] == ["outcome:success", "outcome:failed"]


async def test_a_turn_without_an_attempt_has_an_unknown_outcome(tmp_path: Path) -> None:
    """HO1 breaks before there is a synthesize work order: the outcome is unknown, which is a signal as well."""
    async with open_remembering(tmp_path, ScriptedExecutor(lambda wo: RuntimeError("broken"))) as (stack, _):
        assert (await stack.turn("one", subject_id="ada")).degraded
    assert signal_ids(tmp_path) == ["outcome:unknown"]


async def test_a_reply_abandoned_on_budget_has_an_unknown_outcome(tmp_path: Path) -> None:
    """The model was never asked for a reply, so there is nothing that failed."""
    async with open_remembering(tmp_path, ScriptedExecutor(fitting), turn_budget=300) as (stack, _):
        result = await stack.turn("one " * 400, subject_id="ada")
    assert result.error is not None
    assert result.error.kind == "BUDGET"
    assert [each for each in signal_ids(tmp_path) if each.startswith("outcome:")] == ["outcome:unknown"]


async def test_select_biases_called_at_step2b(scripted: OpenRuntime) -> None:
    """Not everything that is active is shown: labels decide what speaks, weight ranks it, the budget cuts it."""

    def classification(message: str) -> Mapping[str, Any]:
        return labelled(domain=message) if message in ("cooking", "sailing") else QUESTION

    provider = student(classification=classification)
    async with scripted(provider, ho3_enabled=True, ho3_bias_budget=10) as runtime:
        await teach(runtime, "Cooks for two.", "domain:a", labels={"domain": ["cooking"], "task": []}, salience_weight=0.9)
        await teach(runtime, "Sails alone.", "domain:b", labels={"domain": ["sailing"], "task": []}, salience_weight=0.7)
        await teach(runtime, "Is brief.", "domain:c", salience_weight=0.5)
        await teach(runtime, "x" * 100, "domain:d", salience_weight=0.1)
        assert len(await runtime.memory().read_active_biases(namespace=ADA)) == 4
        for message in ("cooking", "sailing", "neither"):
            await say(runtime, message)
    cooking, sailing, neither = asked(provider, "synthesize")
    assert knows("Cooks for two.", "Is brief.")(cooking)
    assert knows("Sails alone.", "Is brief.")(sailing)
    assert knows("Is brief.")(neither)


async def test_context_lines_injected(scripted: OpenRuntime) -> None:
    """The lines go to the model verbatim, as a list of text; where none was chosen the key is absent."""
    provider, line = student(), 'Says "naïve" – 100 % of the time,  with two spaces, { braces } and a \\n that is none.'
    async with scripted(provider, ho3_enabled=True) as runtime:
        await say(runtime)
        await teach(runtime, line)
        await say(runtime)
    before, after = asked(provider, "synthesize")
    assert "ho3_biases" not in before.variables["assembled_context"]
    assert after.variables["assembled_context"]["ho3_biases"] == [line]


async def test_tool_signal_from_wo_chain(tmp_path: Path, scripted: OpenRuntime) -> None:
    """Each tool that the chain used is a signal, as often as it was used: planned by a command or asked for by the model."""

    @tool(read_only=True)
    async def look() -> str:
        """Looks."""
        return "seen"

    @tool(read_only=True)
    async def listen() -> str:
        """Listens."""
        return "heard"

    command = {**QUESTION, "speech_act": "command", "tool_request": {"tool_id": "listen", "arguments": {}}}
    script: list[Any] = [
        QUESTION,
        use_tool("look"),
        use_tool("look"),
        {"response_text": "done"},
        command,
        {"response_text": "done"},
    ]
    async with scripted(
        ScriptedProvider(script), tools=[look, listen], ho3_enabled=True, ho3_gate_count_threshold=100
    ) as runtime:
        await say(runtime, "look twice")
        await say(runtime, "listen")
    assert signal_ids(tmp_path) == [
        *[QUESTIONS, "tool:look", "tool:look", "outcome:success"],
        *["intent:command", "tool:listen", "outcome:success"],
    ]
    assert len({payload["event_id"] for payload in signals(tmp_path)}) == 7


async def test_the_gate_sees_the_signals_of_its_own_turn(scripted: OpenRuntime) -> None:
    """One event is enough here, and it is the turn's own; TURN_STARTED cannot see it, TURN_COMPLETED does."""
    async with scripted(student(), **MANUAL) as runtime:
        result = await say(runtime)
        (started,) = await read_all(runtime.ledgers().ho2m, entry_type=events.TURN_STARTED)
        (completed,) = await read_all(runtime.ledgers().ho2m, entry_type=events.TURN_COMPLETED)
    assert result.consolidation_candidates == (QUESTIONS,)
    assert payload_of(started)["read_positions"]["SIGNALS"] == 0
    assert payload_of(completed)["read_positions"]["SIGNALS"] == 1
    assert {"SIGNALS", "OVERLAYS", "HO2M:ADMIN"} <= payload_of(started)["read_positions"].keys()


async def test_a_recorded_turn_reads_the_same_memory_after_many_more(tmp_path: Path, scripted: OpenRuntime) -> None:
    """Its two moments and positions give the same lines and the same verdicts, whatever was learned and logged since."""
    clock, moments = FakeClock(), list[tuple[Any, Any, list[Any], list[Any]]]()
    rotating = ("one", "two", "three")
    provider = student(
        lambda request: {**LESSON, "context_line": f"Line of {request.variables['signal_id'].replace(':', ' ')}."},
        lambda message: labelled(domain=message),
    )
    async with scripted(provider, clock=clock, ledger=LEAPING, **EASY, ho3_gate_window_hours=1) as runtime:
        memory, ledger = runtime.memory(), runtime.ledgers().ho2m

        async def read(started: Any, completed: Any) -> tuple[list[Any], list[Any]]:
            shown = await memory.read_active_biases(started["turn_ts"], up_to=started["read_positions"], namespace=ADA)
            gates = [
                await memory.check_gate(signal, completed["gate_ts"], up_to=completed["read_positions"], namespace=ADA)
                for signal in (QUESTIONS, *(f"domain:{each}" for each in rotating), "outcome:success")
            ]
            return [each.as_mapping() for each in shown], gates

        for n in range(50):
            result = await say(runtime, rotating[n % 3])
            if n < 10:
                (started,) = await read_all(ledger, session_id=result.session_id, entry_type=events.TURN_STARTED)
                (completed,) = await read_all(ledger, session_id=result.session_id, entry_type=events.TURN_COMPLETED)
                moments.append((started.payload, completed.payload, *await read(started.payload, completed.payload)))
                crossed = [gate.signal_id for gate in moments[-1][3] if gate.crossed]
                assert set(crossed) >= set(result.consolidation_candidates)
            await runtime.drain()
            clock.advance(1_000)
        assert len(await memory.read_overlays(active_only=False, namespace=ADA)) > 10
        for started, completed, shown, gates in moments:
            assert await read(started, completed) == (shown, gates)
    async with scripted(provider, clock=clock, ledger=LEAPING, **EASY, ho3_gate_window_hours=1) as runtime:
        memory = runtime.memory()
        for started, completed, shown, gates in moments:
            assert await read(started, completed) == (shown, gates)
    assert len({len(shown) for _, _, shown, _ in moments}) > 1
    assert len(overlays(tmp_path)) > 10


@pytest.mark.parametrize("flag", [True, False])
async def test_a_turn_without_memory_reads_and_writes_nothing(tmp_path: Path, scripted: OpenRuntime, flag: bool) -> None:
    """`memory=False` on one turn: the known line is not shown, no signal is logged, no gate is opened; it is on record."""
    provider = student()
    async with scripted(provider, ledger=LEGIBLE, **MANUAL) as runtime:
        await teach(runtime, "Is brief.")
        supervisor = runtime.supervisor()
        session_id = await supervisor.start_session(subject_id="ada")
        result = await supervisor.handle_turn("hello", session_id=session_id, memory=flag)
        (started,) = await read_all(runtime.ledgers().ho2m, entry_type=events.TURN_STARTED)
        (completed,) = await read_all(runtime.ledgers().ho2m, entry_type=events.TURN_COMPLETED)
    logged = [each for each in signal_ids(tmp_path) if each != "domain:taught"]
    assert started.payload["memory"] is flag
    if flag:
        assert (logged, result.consolidation_candidates) == ([QUESTIONS, "outcome:success"], (QUESTIONS,))
        assert knows("Is brief.")(asked(provider, "synthesize")[0])
    else:
        assert (logged, result.consolidation_candidates) == ([], ())
        assert knows()(asked(provider, "synthesize")[0])
        assert "gate_ts" not in completed.payload
