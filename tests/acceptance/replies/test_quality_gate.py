"""The verdict of the quality gate on a reply, and its consequences in a turn."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kitchener import HO2Config, tool
from kitchener.actors import QualityGate
from kitchener.actors.work.quality import QualityGateResult
from kitchener.errors import CallerError, ToolError
from kitchener.records import events
from kitchener.records.prompt import PromptRequest
from kitchener.records.work_order import WorkOrder, WorkOrderError
from kitchener.replaying import replay_session
from kitchener.testing import ScriptedProvider, use_tool
from tests.acceptance.conftest import OpenRuntime, OpenStack
from tests.acceptance.stack import (
    QUESTION,
    Said,
    ScriptedExecutor,
    echo,
    fitting,
    open_scripted,
    read_all,
    scripted_config,
    synthesizes,
)

WO = "WO-SES-00000001-002"


def judged(output: Any, *criteria: str) -> QualityGateResult:
    """The gate's verdict on an output."""
    return QualityGate(HO2Config()).verify(output, criteria, WO)


def test_quality_gate_accept_valid_output() -> None:
    """A reply with text is accepted."""
    verdict = judged({"response_text": "Here you are."})
    assert (verdict.decision, verdict.wo_id) == ("accept", WO)


def test_quality_gate_reject_none_output() -> None:
    """No output is rejected, and the reason says so."""
    verdict = judged(None)
    assert verdict.decision == "reject"
    assert "no output" in verdict.reason


def test_quality_gate_reject_empty_output() -> None:
    """An empty output is rejected, and the reason says so."""
    verdict = judged({})
    assert verdict.decision == "reject"
    assert "empty" in verdict.reason


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ({"text": "hi"}, "the output has no response_text"),
        ({"response_text": 7}, "the output has no response_text"),
        ({"response_text": ""}, "the reply is empty"),
        ({"response_text": " \n"}, "the reply is empty"),
    ],
)
def test_quality_gate_reject_no_response_text(output: dict[str, Any], reason: str) -> None:
    """An output without a reply in `response_text` is rejected, and the reason says so."""
    verdict = judged(output)
    assert verdict.decision == "reject"
    assert verdict.reason == reason


@pytest.mark.parametrize(
    ("criterion", "accepted"),
    [
        ("min_chars:5", True),
        ("min_chars:6", False),
        ("max_chars:5", True),
        ("max_chars:4", False),
        ("contains:ell", True),
        ("contains:xyz", False),
        ("not_contains:xyz", True),
        ("not_contains:ell", False),
        ("be kind", False),
        ("min_chars:", False),
        ("min_chars:many", False),
        ("contains:", False),
    ],
)
def test_quality_gate_applies_the_work_orders_own_criteria(criterion: str, accepted: bool) -> None:
    """Each form of criterion is applied; the reason names the one that was not met."""
    verdict = judged({"response_text": "hello"}, criterion)
    assert verdict.is_accepted is accepted
    assert accepted or criterion in verdict.reason


def test_quality_gate_rejects_an_error_marker() -> None:
    """An output that marks an error is no reply, whatever its text."""
    verdict = judged({"response_text": "hello", "error": "out of paper"})
    assert verdict.decision == "reject"
    assert "out of paper" in verdict.reason


async def test_quality_gate_retry_flow(by_hand: OpenStack) -> None:
    """A rejected reply is tried again with tighter constraints; once that succeeds, the rejected one is superseded."""
    async with by_hand(ScriptedExecutor(synthesizes({}, {"response_text": "better"}))) as stack:
        result = await stack.turn()
        failed = await stack.payloads(events.WO_FAILED)
        superseded = await stack.payloads(events.WO_SUPERSEDED)
    _, first, retry = stack.executor.given
    assert (result.response, result.quality_gate_passed, result.error) == ("better", True, None)
    assert retry.wo_type == "synthesize"
    assert retry.parent_wo_id == first.wo_id
    assert retry.constraints.token_budget < first.constraints.token_budget
    assert retry.constraints.temperature == 0.0
    assert [(payload["wo_id"], payload["reason"]) for payload in failed] == [(first.wo_id, "QUALITY_GATE")]
    assert [(payload["wo_id"], payload["superseded_by_wo_id"]) for payload in superseded] == [(first.wo_id, retry.wo_id)]


async def test_quality_gate_escalation_after_max_retries(by_hand: OpenStack) -> None:
    """After `max_retries` retries the turn escalates and completes without a passed gate; no further attempt is made."""
    async with by_hand(ScriptedExecutor(synthesizes({})), settings={"max_retries": 2}) as stack:
        result = await stack.turn()
        (escalation,) = await stack.payloads(events.ESCALATION)
        types = await stack.types()
    assert stack.executor.types() == ["classify", "synthesize", "synthesize", "synthesize"]
    assert escalation["attempts"] == 3
    assert "empty" in escalation["reason"]
    assert (result.quality_gate_passed, result.degraded) == (False, True)
    assert result.error is not None
    assert result.error.kind == "QUALITY_GATE"
    assert result.response
    assert types[-1] == events.TURN_COMPLETED


async def test_quality_gate_event_logged(by_hand: OpenStack) -> None:
    """WO_QUALITY_GATE stands in HO2m with decision and trace hash."""
    async with by_hand(ScriptedExecutor(synthesizes({}, {"response_text": "better"}))) as stack:
        result = await stack.turn()
        verdicts = await stack.payloads(events.WO_QUALITY_GATE)
    assert [payload["decision"] for payload in verdicts] == ["reject", "accept"]
    assert all(payload["trace_hash"].startswith("sha256:") for payload in verdicts)
    assert verdicts[-1]["trace_hash"] == result.trace_hash


async def test_retries_never_make_the_chain_longer_than_allowed(by_hand: OpenStack) -> None:
    """`max_wo_chain_length` ends the retries before `max_retries` does."""
    executor = ScriptedExecutor(synthesizes({}))
    async with by_hand(executor, settings={"max_retries": 10, "max_wo_chain_length": 3}) as stack:
        result = await stack.turn()
        assert len(await stack.payloads(events.ESCALATION)) == 1
    assert executor.types() == ["classify", "synthesize", "synthesize"]
    assert len(result.wo_chain_summary) == 3


async def test_failed_model_calls_are_not_retried_by_the_supervisor(by_hand: OpenStack) -> None:
    """The gateway has retried what a retry can mend: a reply that failed for its provider ends the turn honestly."""

    def script(wo: WorkOrder) -> Said:
        if wo.wo_type != "synthesize":
            return fitting(wo)
        return wo.executing().failed(WorkOrderError(reason="PROVIDER", detail="503 from afar"))

    async with by_hand(ScriptedExecutor(script)) as stack:
        result = await stack.turn()
        assert await stack.payloads(events.ESCALATION) == []
        (failed,) = await stack.payloads(events.WO_FAILED)
    assert stack.executor.types() == ["classify", "synthesize"]
    assert failed["reason"] == "PROVIDER"
    assert result.error is not None
    assert (result.error.kind, result.error.message) == ("PROVIDER", "503 from afar")


async def test_failures_of_earlier_turns_are_put_away_by_the_next_good_turn(by_hand: OpenStack) -> None:
    """A failed work order stays in view until a turn completes after it, which abandons it as over."""
    async with by_hand(ScriptedExecutor(synthesizes({}, {}, {}, {"response_text": "fine again"}))) as stack:
        bad = await stack.turn("one")
        good = await stack.turn("two", session_id=bad.session_id)
        third = await stack.turn("three", session_id=bad.session_id)
        abandoned = await stack.payloads(events.WO_ABANDONED)
    failed = [wo["wo_id"] for wo in bad.wo_chain_summary if wo["state"] == "failed"]
    assert len(failed) == 3
    assert (good.response, third.response) == ("fine again", "fine again")
    assert [(payload["wo_id"], payload["reason"]) for payload in abandoned] == [(wo_id, "turn_over") for wo_id in failed]
    assert {payload["turn_id"] for payload in abandoned} == {good.turn_id}


async def test_a_model_may_reject_what_the_fixed_checks_accept(scripted: OpenRuntime) -> None:
    """`verify_with_model`: a verifier's rejection is a rejection, with its reason. The retry is told it, and verified again."""
    verdicts = [{"decision": "reject", "reason": "too curt"}, {"decision": "accept", "reason": "fine"}]
    provider = ScriptedProvider(lambda request: verdicts.pop(0) if request.wo_type == "verify" else echo(request))
    async with scripted(provider, verify_with_model=True) as runtime:
        result = await runtime.supervisor("ADMIN").handle_turn("hello")
        judged_entries = await read_all(runtime.ledgers("ADMIN").ho2m, entry_type=events.WO_QUALITY_GATE)
    assert [(wo["wo_type"], wo["state"]) for wo in result.wo_chain_summary] == [
        ("classify", "completed"),
        ("synthesize", "superseded"),
        ("verify", "completed"),
        ("synthesize", "completed"),
        ("verify", "completed"),
    ]
    assert [entry.payload["decision"] for entry in judged_entries] == ["reject", "accept"]
    assert judged_entries[0].payload["reason"] == "too curt"
    first, retry = [request.messages for request in provider.requests if request.wo_type == "synthesize"]
    assert first[0] == retry[0]
    told, _, rest = retry[-1].content.partition("</data-")
    assert told.startswith("The last reply was refused.")
    assert told.rstrip().endswith("too curt")
    assert "hello" in rest
    assert judged_entries[-1].payload["trace_hash"] == result.trace_hash
    assert [request.variables["response_text"] for request in provider.requests if request.wo_type == "verify"] == [
        "echo: hello",
        "echo: hello",
    ]


async def test_a_verifier_that_fails_changes_nothing(by_hand: OpenStack) -> None:
    """The verifier is beside the fixed checks: if it cannot give a verdict, theirs stands, and the turn completes cleanly."""

    def script(wo: WorkOrder) -> Said:
        if wo.wo_type == "verify":
            return wo.executing().failed(WorkOrderError(reason="PROVIDER", detail="verifier is away"))
        return fitting(wo)

    async with by_hand(ScriptedExecutor(script), settings={"verify_with_model": True}) as stack:
        result = await stack.turn("hello")
    assert (result.response, result.quality_gate_passed, result.error) == ("re: hello", True, None)
    assert [wo["state"] for wo in result.wo_chain_summary] == ["completed", "completed", "failed"]


async def test_a_classification_that_fails_does_not_stop_the_reply(by_hand: OpenStack) -> None:
    """A message that nothing could classify is still answered; the failure stays on record."""

    def script(wo: WorkOrder) -> Said:
        if wo.wo_type == "classify":
            return wo.executing().failed(WorkOrderError(reason="OUTPUT_SCHEMA", detail="not JSON"))
        return fitting(wo)

    async with by_hand(ScriptedExecutor(script)) as stack:
        result = await stack.turn("hello")
        (failed,) = await stack.payloads(events.WO_FAILED)
    assert (result.response, result.error) == ("re: hello", None)
    assert failed["reason"] == "OUTPUT_SCHEMA"
    assert stack.executor.given[1].prior_results[0]["speech_act"] != QUESTION["speech_act"]


UNKNOWN = ["be kind", "contains:", "max_chars:-1", "max_chars:1234567890", "MIN_CHARS:3", ""]


def test_the_gate_names_all_criteria_that_were_not_met() -> None:
    verdict = judged({"response_text": "hello"}, "max_chars:9", "contains:EUR", "be kind")
    assert verdict.unmet == ("contains:EUR", "be kind")
    assert verdict.reason == "acceptance criteria not met: contains:EUR; be kind"


async def test_criteria_of_the_class_and_of_the_caller_are_planned_and_a_retry_is_told_which_failed(by_hand: OpenStack) -> None:
    """The retry meets both; the attempt before met one, so that one is not told."""
    executor = ScriptedExecutor(synthesizes({"response_text": "EUR 12, my friend"}, {"response_text": "EUR 12"}))
    async with by_hand(executor, settings={"acceptance": ["max_chars:6"], "instructions": "Be brief."}) as stack:
        result = await stack.supervisor.handle_turn("what does it cost?", acceptance=["contains:EUR", "max_chars:6"])
        planned = [each for each in await stack.payloads(events.WO_PLANNED) if each["wo_type"] == "synthesize"]
        (started,) = await stack.payloads(events.TURN_STARTED)
        plain = await stack.supervisor.handle_turn("and now?", session_id=result.session_id)
        starts = await stack.payloads(events.TURN_STARTED)
    assert (result.response, result.quality_gate_passed, plain.quality_gate_passed) == ("EUR 12", True, True)
    assert [each["acceptance"] for each in planned] == [["max_chars:6", "contains:EUR"]] * 2
    assert started["acceptance"] == ["contains:EUR", "max_chars:6"]
    assert "acceptance" not in starts[1]
    replies = [wo.input_context for wo in executor.given if wo.wo_type == "synthesize"]
    assert {each["instructions"] for each in replies} == {"Be brief."}
    first, retry = [each["requirements"] for each in replies[:2]]
    assert first == "The reply is accepted only if it meets each of these criteria:\n- max_chars:6\n- contains:EUR"
    assert retry == f"{first}\n\nThe last reply was rejected, because it did not meet these criteria:\n- max_chars:6"


async def test_criteria_of_the_tool_that_runs_before_the_reply_are_planned(scripted: OpenRuntime, tmp_path: Path) -> None:
    """Only in a turn that runs the tool. Criteria of tool and caller replay identical; a tool without its own diverges."""

    @tool(read_only=True, acceptance=["contains:EUR"])
    def price() -> str:
        """The price."""
        return "12"

    def model(request: PromptRequest) -> dict[str, Any]:
        if request.wo_type == "classify":
            wants = request.variables["user_message"] == "price?"
            return {**QUESTION, **({"tool_request": {"tool_id": "price", "arguments": {}}} if wants else {})}
        told = request.variables.get("requirements", "")
        return {"response_text": "12 EUR" if "did not meet these criteria:\n- contains:EUR" in told else "twelve"}

    async with scripted(ScriptedProvider(model), tools=[price]) as runtime:
        supervisor = runtime.supervisor()
        bought = await supervisor.handle_turn("price?")
        other = await supervisor.handle_turn("hello?", session_id=bought.session_id, acceptance=["contains:elv"])
    assert (bought.response, other.response) == ("12 EUR", "twelve")
    report = await replay_session(bought.session_id, config=scripted_config(tmp_path), tools=[price])
    assert report.is_identical, report.text()
    price.acceptance = ()
    report = await replay_session(bought.session_id, config=scripted_config(tmp_path), tools=[price])
    assert report.divergence is not None
    assert report.divergence.field == "acceptance"


@pytest.mark.parametrize("classify", ["model", "rules"])
async def test_criteria_of_a_tool_that_the_model_calls_hold_for_its_reply(tmp_path: Path, classify: str) -> None:
    """They are planned for the second attempt, which is told of them and given the result, since it may call no tool."""

    @tool(read_only=True, acceptance=["contains:EUR"])
    def price() -> str:
        """The price."""
        return "12"

    def model(request: PromptRequest) -> Any:
        if request.wo_type == "classify":
            return QUESTION
        if request.variables["user_message"] == "price?" and request.may_call_tools:
            return use_tool("price") if request.messages[-1].role != "tool" else {"response_text": "twelve"}
        told = request.variables.get("requirements", "")
        is_told = "did not meet these criteria:\n- contains:EUR" in told
        return {"response_text": f"{request.variables['prior_results'][-1]['result']} EUR" if is_told else "eleven"}

    async with open_scripted(tmp_path, ScriptedProvider(model), tools=[price], classify=classify) as runtime:
        bought = await runtime.supervisor().handle_turn("price?")
        other = await runtime.supervisor().handle_turn("hello?", session_id=bought.session_id)
        planned = await read_all(runtime.ledgers().ho2m, entry_type=events.WO_PLANNED)
    assert (bought.response, other.response) == ("12 EUR", "eleven")
    replies = [each.payload.get("acceptance", []) for each in planned if each.payload["wo_type"] == "synthesize"]
    assert replies == [[], ["contains:EUR"], []]
    report = await replay_session(bought.session_id, config=scripted_config(tmp_path, classify=classify), tools=[price])
    assert report.is_identical, report.text()


@pytest.mark.parametrize("criterion", UNKNOWN)
async def test_a_criterion_that_nobody_could_apply_is_refused_by_whoever_takes_it(by_hand: OpenStack, criterion: str) -> None:
    with pytest.raises(ToolError, match="acceptance"):
        tool(acceptance=[criterion])(print)
    with pytest.raises(ValidationError, match="acceptance"):
        HO2Config.model_validate({"acceptance": [criterion]})
    async with by_hand(ScriptedExecutor(fitting)) as stack:
        with pytest.raises(CallerError, match="acceptance"):
            await stack.supervisor.handle_turn("hello", acceptance=[criterion])
        assert await stack.types() == []


@pytest.mark.parametrize("wrong", ["contains:a", [7], ["contains:a"] * 51])
async def test_criteria_are_a_list_of_texts(by_hand: OpenStack, wrong: Any) -> None:
    async with by_hand(ScriptedExecutor(fitting)) as stack:
        with pytest.raises(CallerError, match="acceptance"):
            await stack.supervisor.handle_turn("hello", acceptance=wrong)


async def test_a_verdict_gives_a_reason_only_where_it_has_one(by_hand: OpenStack) -> None:
    """That all checks passed is what `accept` says already; a rejection says which did not, docs/ledger-entries.md."""
    executor = ScriptedExecutor(synthesizes({"response_text": " "}, {"response_text": "better"}))
    async with by_hand(executor) as stack:
        await stack.turn()
        verdicts = await stack.payloads(events.WO_QUALITY_GATE)
        planned = await stack.payloads(events.WO_PLANNED)
    assert [(each["decision"], each["reason"]) for each in verdicts] == [
        ("reject", "the reply is empty"),
        ("accept", None),
    ]
    assert all("targets" not in each and "acceptance" not in each for each in planned)
