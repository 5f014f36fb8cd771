"""HO2 from outside: the result of a message, the work orders that HO1 gets, and the record."""

import dataclasses
import hashlib
import json
import re
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from kitchener import tool
from kitchener.actors.work.budget import Allocation, Budget, BudgetScope, TokenBudgeter
from kitchener.errors import CallerError
from kitchener.ledger import compute_trace_hash
from kitchener.records import events
from kitchener.records.turn import TurnResult
from kitchener.records.work_order import WorkOrder
from kitchener.runtime import Runtime
from kitchener.testing import ScriptedProvider
from tests.acceptance.conftest import OpenRuntime, OpenStack
from tests.acceptance.stack import COST, QUESTION, Said, ScriptedExecutor, Stack, echo, fitting, read_all, synthesizes, types_of

COMMAND = {**QUESTION, "speech_act": "command", "tool_request": {"tool_id": "list_packages", "arguments": {"prefix": "k"}}}


@tool(read_only=True)
async def list_packages(prefix: str = "") -> list[str]:
    """The packages that are installed."""
    return [name for name in ("anyio", "kitchener") if name.startswith(prefix)]


def commanding() -> ScriptedProvider:
    """A model that takes every message for the command to list packages."""
    return ScriptedProvider(lambda request: COMMAND if request.wo_type == "classify" else echo(request))


async def test_handle_turn_hello_end_to_end(scripted: OpenRuntime) -> None:
    """A message goes to the model twice and comes back as a reply that stands in the ledger."""
    provider = ScriptedProvider.replies("Hello there.", record=True)
    async with scripted(provider) as runtime:
        result = await runtime.supervisor("ADMIN").handle_turn("hello")
        assert result.response == "Hello there."
        assert [request.wo_type for request in provider.requests] == ["classify", "synthesize"]
        completed = await read_all(runtime.ledgers("ADMIN").ho2m, entry_type=events.TURN_COMPLETED)
        assert [entry.payload["response"] for entry in completed] == ["Hello there."]


async def test_handle_turn_creates_classify_wo(stack: Stack) -> None:
    """The first work order is classify, dispatched, with the message in its input."""
    result = await stack.turn("which packages are installed?")
    first = stack.executor.given[0]
    assert (first.wo_type, first.state, first.tier_target) == ("classify", "dispatched", "HO1")
    assert first.input_context["user_message"] == "which packages are installed?"
    assert (first.session_id, first.turn_id) == (result.session_id, result.turn_id)


async def test_a_supervisor_assembled_by_hand_takes_calls_only_in_its_own_thread(stack: Stack) -> None:
    def elsewhere() -> None:
        anyio.run(stack.supervisor.handle_turn, "hello")

    with pytest.raises(CallerError, match="another thread"):
        await anyio.to_thread.run_sync(elsewhere)
    assert (await stack.turn("hello")).response


async def test_handle_turn_creates_synthesize_wo(stack: Stack) -> None:
    """The second is synthesize, with the classification in its prior results."""
    await stack.turn("why?")
    second = stack.executor.given[1]
    assert (second.wo_type, second.state) == ("synthesize", "dispatched")
    assert second.prior_results == (dict(QUESTION),)
    assert second.input_context["user_message"] == "why?"


async def test_handle_turn_returns_turn_result(runtime: Runtime) -> None:
    """Every field says something true of the turn, and stands in TURN_COMPLETED, but three that a plain turn has not."""
    result = await runtime.supervisor("ADMIN").handle_turn("hello", subject_id="ada")
    assert result.response == "echo: hello"
    assert [wo["wo_type"] for wo in result.wo_chain_summary] == ["classify", "synthesize"]
    assert result.cost_summary["llm_calls"] == 2
    assert result.cost_summary["input_tokens"] > 0
    assert result.cost_summary["output_tokens"] > 0
    assert result.turn_id == f"T-{result.session_id[4:]}-000001"
    assert result.quality_gate_passed
    assert not result.degraded
    assert result.error is None
    assert (result.consolidation_candidates, result.pending_approval) == ((), ())
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", result.trace_hash or "")
    (completed,) = await read_all(runtime.ledgers("ADMIN").ho2m, entry_type=events.TURN_COMPLETED)
    always = {field.name for field in dataclasses.fields(TurnResult)} - {"output", "client_calls", "truncated"}
    assert always <= completed.payload.keys()
    assert TurnResult.from_payload(completed.payload) == result


async def test_handle_turn_multi_wo_chain(scripted: OpenRuntime) -> None:
    """A command with a valid request for a tool runs it before the reply: three work orders."""
    async with scripted(commanding(), tools=[list_packages]) as runtime:
        result = await runtime.supervisor("ADMIN").handle_turn("list the packages")
        assert [wo["wo_type"] for wo in result.wo_chain_summary] == ["classify", "tool_call", "synthesize"]
        (call,) = await read_all(runtime.ledgers("ADMIN").ho1m, entry_type=events.TOOL_CALL)
        assert call.payload["result"] == ["kitchener"]


async def test_handle_turn_auto_starts_session(stack: Stack) -> None:
    """Without a session the turn starts one, which takes the next turn too."""
    first = await stack.turn("hello")
    assert re.fullmatch(r"SES-[0-9a-f]{8}", first.session_id)
    second = await stack.turn("again", session_id=first.session_id)
    assert second.session_id == first.session_id
    assert (await stack.types()).count(events.SESSION_START) == 1


async def test_handle_turn_wo_chain_summary(by_hand: OpenStack) -> None:
    """Every work order stands in the summary, retries included, with its id, type, state and cost."""
    async with by_hand(ScriptedExecutor(synthesizes({}, {"response_text": "better"}))) as stack:
        result = await stack.turn()
    assert [wo["wo_id"] for wo in result.wo_chain_summary] == [wo.wo_id for wo in stack.executor.given]
    assert [(wo["wo_type"], wo["state"]) for wo in result.wo_chain_summary] == [
        ("classify", "completed"),
        ("synthesize", "superseded"),
        ("synthesize", "completed"),
    ]
    assert all(wo["cost"]["input_tokens"] == COST.input_tokens for wo in result.wo_chain_summary)


async def test_handle_turn_cost_summary(by_hand: OpenStack) -> None:
    """The turn's cost is the sum over all its work orders, a rejected one included."""
    async with by_hand(ScriptedExecutor(synthesizes({}, {"response_text": "better"}))) as stack:
        result = await stack.turn()
    assert result.cost_summary == {
        "input_tokens": 3 * COST.input_tokens,
        "output_tokens": 3 * COST.output_tokens,
        "llm_calls": 3 * COST.llm_calls,
        "tool_calls": 0,
    }


async def test_classify_synthesize_pipeline(stack: Stack) -> None:
    """A question is a chain of two, and both complete, in the result and on record."""
    result = await stack.turn("why?")
    assert [(wo["wo_type"], wo["state"]) for wo in result.wo_chain_summary] == [
        ("classify", "completed"),
        ("synthesize", "completed"),
    ]
    completed = await stack.payloads(events.WO_COMPLETED)
    assert [payload["wo_id"] for payload in completed] == [wo["wo_id"] for wo in result.wo_chain_summary]


async def test_classify_tool_call_synthesize_pipeline(scripted: OpenRuntime) -> None:
    """Three in the chain, in this order; the reply is written with the classification and the tool's result at hand."""
    provider = commanding()
    async with scripted(provider, tools=[list_packages]) as runtime:
        result = await runtime.supervisor("ADMIN").handle_turn("list the packages")
    assert [(wo["wo_type"], wo["state"]) for wo in result.wo_chain_summary] == [
        ("classify", "completed"),
        ("tool_call", "completed"),
        ("synthesize", "completed"),
    ]
    synthesize = next(request for request in provider.requests if request.wo_type == "synthesize")
    assert synthesize.variables["prior_results"] == [COMMAND, {"tool_id": "list_packages", "result": ["kitchener"]}]


class Bookkeeper(TokenBudgeter):
    """A budgeter that notes what it is asked, in a journal it may share with an executor."""

    def __init__(self, journal: list[tuple[str, str]]) -> None:
        super().__init__()
        self._journal = journal

    def allocate(self, scope: BudgetScope, tokens: int | None, *, used: int = 0) -> Allocation:
        self._journal.append(("allocate", scope[-1]))
        return super().allocate(scope, tokens, used=used)

    def check(self, scope: BudgetScope) -> Budget:
        self._journal.append(("check", scope[-1]))
        return super().check(scope)


def noting(journal: list[tuple[str, str]]) -> ScriptedExecutor:
    """An executor that notes what it runs."""

    def script(wo: WorkOrder) -> Said:
        journal.append(("execute", wo.wo_id))
        return fitting(wo)

    return ScriptedExecutor(script)


async def test_wo_budget_allocated_per_wo(by_hand: OpenStack) -> None:
    """Each work order has an allocation of its own, made before it runs."""
    journal: list[tuple[str, str]] = []
    async with by_hand(noting(journal), budgeter=Bookkeeper(journal)) as stack:
        await stack.turn()
        ids = [wo.wo_id for wo in stack.executor.given]
    assert len(ids) == 2
    assert [scope for what, scope in journal if what == "allocate" and scope.startswith("WO-")] == ids
    assert all(journal.index(("allocate", wo_id)) < journal.index(("execute", wo_id)) for wo_id in ids)


async def test_wo_budget_checked_before_dispatch(by_hand: OpenStack) -> None:
    """Each work order is checked against its budget, and only then dispatched."""
    journal: list[tuple[str, str]] = []
    async with by_hand(noting(journal), budgeter=Bookkeeper(journal)) as stack:
        await stack.turn()
        ids = [wo.wo_id for wo in stack.executor.given]
    steps = [step for step in journal if step[0] != "allocate" and step[1].startswith("WO-")]
    assert steps == [step for wo_id in ids for step in (("check", wo_id), ("execute", wo_id))]


async def test_wo_budget_insufficient_returns_degraded(scripted: OpenRuntime) -> None:
    """Too small a budget: the reply says so, the work order is abandoned unexecuted, and no model is asked."""
    provider = ScriptedProvider(echo)
    async with scripted(provider, turn_budget=100) as runtime:
        result = await runtime.supervisor("ADMIN").handle_turn("hello")
        entries = await read_all(runtime.ledgers("ADMIN").ho2m, session_id=result.session_id)
        assert await read_all(runtime.ledgers("ADMIN").ho1m) == []
    assert provider.requests == []
    assert result.degraded
    assert result.error is not None
    assert result.error.kind == "BUDGET"
    assert "needs more tokens than one turn may use" in result.response
    assert [wo["state"] for wo in result.wo_chain_summary] == ["abandoned"]
    assert events.WO_DISPATCHED not in types_of(entries)
    assert [entry.payload["reason"] for entry in entries if entry.entry_type == events.WO_ABANDONED] == ["BUDGET"]


def broken(_wo: WorkOrder) -> Said:
    """An executor that is out of order."""
    return RuntimeError("HO1 is broken")


async def test_ho1_exception_triggers_degradation(by_hand: OpenStack) -> None:
    """HO1 raises and nothing else helps: DEGRADATION, then a result with an error. handle_turn does not raise."""
    async with by_hand(ScriptedExecutor(broken)) as stack:
        result = await stack.turn()
        assert result.degraded
        assert result.error is not None
        assert result.error.kind == "EXECUTOR"
        assert "HO1 is broken" in result.error.message
        assert result.response
        types = await stack.types()
        assert types.index(events.DEGRADATION) < types.index(events.TURN_COMPLETED)


async def test_degradation_event_logged_to_ho2m(by_hand: OpenStack) -> None:
    """The degradation is on record as a violation of governance, with the component and the error."""
    async with by_hand(ScriptedExecutor(broken)) as stack:
        result = await stack.turn()
        (degradation,) = await stack.payloads(events.DEGRADATION)
    assert degradation["governance_violation"] is True
    assert degradation["component"] == "HO1"
    assert "HO1 is broken" in degradation["error"]
    assert degradation["turn_id"] == result.turn_id


async def test_wo_planned_event_logged(by_hand: OpenStack) -> None:
    """One WO_PLANNED per work order, in order, before its dispatch; it names the input and never holds it."""
    async with by_hand(ScriptedExecutor(synthesizes({}, {"response_text": "better"}))) as stack:
        result = await stack.turn("a message that must not be repeated")
        planned = await stack.payloads(events.WO_PLANNED)
    assert [payload["wo_id"] for payload in planned] == [wo["wo_id"] for wo in result.wo_chain_summary]
    assert [payload["wo_type"] for payload in planned] == ["classify", "synthesize", "synthesize"]
    assert all(payload["input_hash"].startswith("sha256:") for payload in planned)
    assert "a message that must not be repeated" not in json.dumps(planned)


async def test_a_plan_names_what_its_input_holds_besides_the_message(stack: Stack) -> None:
    """The message is that of the turn's TURN_STARTED. A first turn has nothing else; later ones classify by earlier turns."""
    session_id = await stack.supervisor.start_session()
    for message in ("one", "two"):
        await stack.supervisor.handle_turn(message, session_id=session_id)
    planned = await stack.payloads(events.WO_PLANNED, session_id=session_id)
    assert ["input_refs" in payload for payload in planned] == [False, False, True, False]
    (past,) = planned[2]["input_refs"]
    first, _ = await read_all(stack.ledgers.ho2m, session_id=session_id, entry_type=events.TURN_COMPLETED)
    assert past == first.ref.as_mapping()


async def test_wo_dispatched_event_logged(stack: Stack) -> None:
    """WO_DISPATCHED names the work order and its tier, one per work order."""
    await stack.turn()
    dispatched = await stack.payloads(events.WO_DISPATCHED)
    assert [payload["wo_id"] for payload in dispatched] == [wo.wo_id for wo in stack.executor.given]
    assert {payload["tier_target"] for payload in dispatched} == {"HO1"}


async def test_wo_chain_complete_event_logged(stack: Stack) -> None:
    """WO_CHAIN_COMPLETE counts the work orders and sums their costs."""
    result = await stack.turn()
    (chain,) = await stack.payloads(events.WO_CHAIN_COMPLETE)
    assert chain["wo_count"] == 2
    assert chain["wo_ids"] == [wo["wo_id"] for wo in result.wo_chain_summary]
    assert chain["total_cost"] == result.cost_summary
    assert chain["total_cost"]["input_tokens"] == 2 * COST.input_tokens


async def test_wo_quality_gate_event_logged(by_hand: OpenStack) -> None:
    """Each attempt at a reply has its verdict on record, under the work order that was judged."""
    async with by_hand(ScriptedExecutor(synthesizes({}, {"response_text": "better"}))) as stack:
        await stack.turn()
        verdicts = await read_all(stack.ledgers.ho2m, entry_type=events.WO_QUALITY_GATE)
    attempts = [wo.wo_id for wo in stack.executor.given if wo.wo_type == "synthesize"]
    assert [entry.payload["decision"] for entry in verdicts] == ["reject", "accept"]
    assert [entry.payload["wo_id"] for entry in verdicts] == attempts
    assert [entry.entity_id for entry in verdicts] == attempts


async def test_trace_hash_computed_from_ho1m(runtime: Runtime, tmp_path: Path) -> None:
    """The trace hash is SHA-256 over the stored bytes of the turn's entries in HO1m, as anybody can recompute from the file."""
    supervisor, ledgers = runtime.supervisor("ADMIN"), runtime.ledgers("ADMIN")
    first = await supervisor.handle_turn("hello")
    second = await supervisor.handle_turn("again", session_id=first.session_id)
    trace = [entry for entry in await read_all(ledgers.ho1m) if entry.payload["turn_id"] == second.turn_id]
    assert trace
    assert second.trace_hash == compute_trace_hash(trace)
    await ledgers.commit()
    lines = (tmp_path / "HO1" / "ADMIN" / "ho1m.jsonl").read_bytes().splitlines()
    bodies = [line.partition(b'"entry":')[2][:-1] for line in lines]
    told = b"".join(body for body in bodies if json.loads(body)["payload"]["turn_id"] == second.turn_id)
    assert second.trace_hash == f"sha256:{hashlib.sha256(told).hexdigest()}"
    assert first.trace_hash != second.trace_hash


async def test_trace_hash_on_chain_complete(runtime: Runtime) -> None:
    """WO_CHAIN_COMPLETE carries the turn's trace hash."""
    result = await runtime.supervisor("ADMIN").handle_turn("hello")
    (chain,) = await read_all(runtime.ledgers("ADMIN").ho2m, entry_type=events.WO_CHAIN_COMPLETE)
    assert chain.payload["trace_hash"] == result.trace_hash
    assert result.trace_hash is not None


async def test_trace_hash_on_quality_gate(runtime: Runtime) -> None:
    """The accepting WO_QUALITY_GATE carries the same trace hash as the chain."""
    result = await runtime.supervisor("ADMIN").handle_turn("hello")
    (verdict,) = await read_all(runtime.ledgers("ADMIN").ho2m, entry_type=events.WO_QUALITY_GATE)
    assert verdict.payload["trace_hash"] == result.trace_hash
    assert result.trace_hash is not None


async def test_the_trace_holds_this_turn_alone_while_others_run(scripted: OpenRuntime) -> None:
    """Thirty turns at once write one HO1m; each trace hash covers its own turn's entries and nobody else's."""
    results: list[TurnResult] = []
    async with scripted() as runtime:
        supervisor = runtime.supervisor("ADMIN")

        async def send(n: int) -> None:
            results.append(await supervisor.handle_turn(f"message {n}"))

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for n in range(30):
                    tasks.start_soon(send, n)
        entries = await read_all(runtime.ledgers("ADMIN").ho1m)
    for result in results:
        assert result.trace_hash == compute_trace_hash([e for e in entries if e.payload["turn_id"] == result.turn_id])


@pytest.mark.parametrize("speech_act", ["greeting", "thanks"])
async def test_small_talk_may_call_no_tools(scripted: OpenRuntime, speech_act: str) -> None:
    """A greeting is answered without tools; a question may use them. Both are shown them, as a cache needs it."""
    provider = ScriptedProvider(
        lambda request: (
            {**QUESTION, "speech_act": request.variables["user_message"]} if request.wo_type == "classify" else echo(request)
        )
    )
    async with scripted(provider, tools=[list_packages]) as runtime:
        await runtime.supervisor("ADMIN").handle_turn(speech_act)
        await runtime.supervisor("ADMIN").handle_turn("question")
    replies = [request for request in provider.requests if request.wo_type == "synthesize"]
    assert [[spec.tool_id for spec in request.tools] for request in replies] == [["list_packages"]] * 2
    assert [request.may_call_tools for request in replies] == [False, True]
