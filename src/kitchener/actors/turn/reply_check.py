"""Judges a reply before the user gets it, and decides whether another attempt makes sense.

The rules of the quality gate are in `actors/work/quality.py`. `turn.py` makes the attempts.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from kitchener.actors.executor.answers import OUTPUT_KEY
from kitchener.actors.executor.packs import REQUIREMENTS, fence
from kitchener.actors.executor.tool_rounds.result_pages import cut_results
from kitchener.actors.turn.chain import WorkOrderChain
from kitchener.actors.turn.reply import APOLOGY, SPENDING_LIMIT, Reply, apology_for
from kitchener.actors.turn.services import TurnConstants, TurnServices
from kitchener.actors.turn.step import TurnStep
from kitchener.actors.work.plan import told_criteria, told_output, told_refusal
from kitchener.actors.work.quality import QualityGateResult
from kitchener.context import result_id
from kitchener.criteria import is_for_model
from kitchener.ledger import StoredEntry
from kitchener.records import events
from kitchener.records.entries import (
    EscalationPayload,
    ModelCallPayload,
    QualityGatePayload,
    ToolCallPayload,
    opened,
    payload_as,
)
from kitchener.records.output_schema import OutputSchema
from kitchener.records.outputs import ReplyOutput, ToolOutput, VerifierOutput
from kitchener.records.turn import TextRetracted, TurnError, UpdateListener
from kitchener.records.work_order import WorkOrder, WorkOrderError

REFUSED: Final = "the caller's model refuses the output: "
"""The start of a verdict's reason if the object fits its schema, but the caller's pydantic model refuses it."""


async def judge_reply(
    services: TurnServices,
    chain: WorkOrderChain,
    message: str,
    wo: WorkOrder,
    acceptance: tuple[str, ...],
    asked: OutputSchema | None = None,
) -> QualityGateResult | Reply:
    """Judges one attempt, and records the verdict with the hash of the trace so far.

    Returns a `Reply` if the verifying model was never asked, e.g. because the budget was used up.

    Args:
        services: the components that all turns of the agent class share
        chain: the work orders of the turn
        message: the user's message
        wo: the attempt
        acceptance: the planned criteria, and those of the tools that the model called
        asked: the object that the caller wants; None: text
    """
    wo_id, output = wo.wo_id, wo.output_as(ReplyOutput)
    verdict = by_rules = services.quality.verify(output, acceptance, wo_id)
    if verdict.is_accepted and output is not None and asked is not None:
        problem = asked.problem(output[OUTPUT_KEY])
        if problem is not None:
            verdict = QualityGateResult("reject", f"{REFUSED}{problem}", wo_id, refusal=problem)
    if verdict.is_accepted and output is not None:
        text = str(output.get("response_text", ""))
        if not chain.can_record(text):
            verdict = QualityGateResult("reject", "the reply does not fit into one ledger entry (max_entry_bytes)", wo_id)
        elif services.config.verify_with_model and not chain.work_orders_left and any(map(is_for_model, acceptance)):
            verdict = QualityGateResult("reject", "no work order is left to judge the acceptance criteria", wo_id)
        elif services.config.verify_with_model and chain.work_orders_left:
            judged = await _ask_verifier(services, chain, message, text, verdict, acceptance)
            if isinstance(judged, Reply):
                return judged
            verdict = judged
    has_reason = verdict is not by_rules or not verdict.is_accepted or services.constants.policy_version < 7
    fields: QualityGatePayload = {
        "wo_id": wo_id,
        "decision": verdict.decision,
        "reason": verdict.reason if has_reason else None,
        "trace_hash": chain.trace_hash(),
    }
    await chain.write(events.WO_QUALITY_GATE, wo_id, fields)
    return verdict


class Rejection(NamedTuple):
    """A rejected attempt at a reply, as the next attempt is told of it."""

    verdict: QualityGateResult
    error: WorkOrderError | None
    turn_id: str
    """The turn; delimiters of data are derived from it."""


def told_of_reply(
    constants: TurnConstants, asked: OutputSchema | None, acceptance: tuple[str, ...], rejection: Rejection | None = None
) -> dict[str, object]:
    """Returns the inputs that tell the model what its reply must be: instructions of the class, and requirements of this reply.

    Prompts show the requirements beside the message, because a change of the system message keeps a provider's cache from
    serving all that follows. Up to version 11 of the policy, they are part of the instructions.

    Args:
        constants: what all turns of the class share
        asked: the object that the caller wants; None: text
        acceptance: the criteria that the reply must meet
        rejection: the last attempt; None: this is the first attempt
    """
    is_beside = constants.policy_version > 11
    told = "" if is_beside else constants.instructions
    if asked is not None:
        told = told_output(told, asked.text)
    if acceptance:
        told = told_criteria(told, acceptance, rejection.verdict.unmet if rejection is not None else ())
    if rejection is not None:
        told = _told_problem(told, rejection, is_always_told=is_beside)
    if not is_beside:
        return {"instructions": told}
    return {"instructions": constants.instructions, REQUIREMENTS: told} if told else {"instructions": constants.instructions}


def _told_problem(told: str, rejection: Rejection, *, is_always_told: bool) -> str:
    """What the next attempt is told, with what was wrong with the last one.

    Args:
        told: what it is told besides
        rejection: the last attempt
        is_always_told: False: only the problem of an object that the caller's model refused is told
    """
    verdict, error, turn_id = rejection
    if verdict.refusal:
        return told_refusal(told, fence(turn_id, verdict.refusal))
    if not is_always_told or verdict.unmet:
        return told
    if error is not None and error.reason == "OUTPUT_SCHEMA":
        return told_refusal(told, fence(turn_id, error.detail))
    return told_refusal(told, fence(turn_id, verdict.reason), "reply")


async def as_rejected(
    wo: WorkOrder, verdict: QualityGateResult, chain: WorkOrderChain, update: UpdateListener | None
) -> WorkOrder:
    """Records a rejected work order as failed, tells the caller that its text does not count, and returns it."""
    if wo.state == "completed":  # otherwise the failure is already recorded
        wo = wo.failed(WorkOrderError(reason="QUALITY_GATE", detail=verdict.reason))
        await chain.record_failure(wo)
    if update is not None:
        await update(TextRetracted(wo.wo_id))
    return wo


async def apology_after(
    services: TurnServices, chain: WorkOrderChain, rejected: Sequence[WorkOrder], verdict: QualityGateResult
) -> Reply | None:
    """Returns an apology unless another attempt makes sense.

    The gateway has already retried provider failures. So only rejected or malformed replies are retried here.

    Args:
        services: the components that all turns of the agent class share
        chain: the work orders of the turn
        rejected: the failed attempts, oldest first
        verdict: the verdict on the last attempt
    """
    last = rejected[-1]
    if last.error is not None and last.error.reason not in ("QUALITY_GATE", "OUTPUT_SCHEMA"):
        reason, of_call = last.error.reason, last.error.provider_reason
        if of_call == "spending_limit":
            return Reply(SPENDING_LIMIT, TurnError("BUDGET", last.error.detail, last.wo_id))
        text = apology_for(reason, services.constants.policy_version, of_call)
        return Reply(text, TurnError(reason, last.error.detail, last.wo_id))
    if len(rejected) > services.config.max_retries or chain.work_orders_left < 1:
        fields: EscalationPayload = {"reason": verdict.reason, "attempts": len(rejected), "wo_id": last.wo_id}
        await chain.write(events.ESCALATION, chain.turn_id, fields)
        # The gate's verdict on an answer that is no output is short; the error says what did not fit.
        why = verdict.reason if last.error is None else last.error.detail
        message = f"no acceptable reply after {len(rejected)} attempts: {why}"
        return Reply(APOLOGY, TurnError("QUALITY_GATE", message, last.wo_id))
    return None


def results_of(trace: Iterable[StoredEntry], wo: WorkOrder, policy_version: int) -> list[Mapping[str, object]]:
    """The tool results of a work order, for the replying model: of tools that ran before the reply, or in a failed attempt.

    After a failed attempt, the next one may call no tools, so it is shown at most the same parts of the results.

    Args:
        trace: the executor's entries of the turn
        wo: the work order
        policy_version: version of the rules that the turn follows
    """
    made = (entry for entry in trace if entry.entry_type == events.TOOL_CALL and entry.entity_id == wo.wo_id)
    calls = [payload_as(ToolCallPayload, entry.payload) for entry in made]
    if wo.wo_type == "tool_call":
        source = _source(calls[0]) if calls else {}
        output = wo.output_as(ToolOutput)
        if output is None:
            told = wo.error.detail if wo.error else "the tool gave no result"
            return [{"tool_id": wo.input_context["tool_id"], **source, "error": told}]
        named = {"item_id": result_id(wo.wo_id, 1)} if policy_version > 5 else {}
        return [{**output, **source, **named}]
    found = [each for each in calls if "result" in each]
    results = [opened(each["result"]) for each in found]
    shown = cut_results(results, wo.constraints, escapes_text=policy_version < 8)
    return [{"tool_id": each["tool_id"], **_source(each), "result": result} for each, result in zip(found, shown, strict=True)]


def _source(call: ToolCallPayload) -> Mapping[str, object]:
    """The untrusted source of a recorded call's result, as a field; empty: it is trusted."""
    return {"source": call["source"]} if call.get("untrusted") else {}


def said_beside_calls(chain: WorkOrderChain, wo_id: str) -> str:
    """The model's text in the last answer of a work order, beside its tool calls.

    "": there is none, or it does not fit into the turn's record.
    """
    for entry in reversed(chain.trace):
        if entry.entry_type == events.LLM_CALL and entry.entity_id == wo_id:
            answer = opened(payload_as(ModelCallPayload, entry.payload)["response"])
            return answer["text"] if answer is not None and chain.can_record(answer["text"]) else ""
    return ""


def closing_tool(trace: Sequence[StoredEntry], closing: Collection[str]) -> str | None:
    """The last tool of a turn that succeeded and may close the intent.

    Args:
        trace: the executor's entries of the turn
        closing: the tools that may
    """
    calls = [payload_as(ToolCallPayload, e.payload) for e in reversed(trace) if closing and e.entry_type == events.TOOL_CALL]
    return next((each["tool_id"] for each in calls if each["tool_id"] in closing and "result" in each), None)


async def _ask_verifier(
    services: TurnServices,
    chain: WorkOrderChain,
    message: str,
    text: str,
    verdict: QualityGateResult,
    acceptance: tuple[str, ...],
) -> QualityGateResult | Reply:
    """Asks a model to verify a reply that passed the fixed checks. If the verifier fails, `verdict` stands."""
    inputs = {"response_text": text, "acceptance": list(acceptance), "user_message": message}
    check = await chain.dispatch(TurnStep("verify", inputs, services.constants.steps.verify, parent=verdict.wo_id))
    if isinstance(check, Reply):
        return check
    judged = check.output_as(VerifierOutput)
    if judged is None:
        return verdict
    await chain.accept(check)
    if judged.get("decision") != "reject":
        return verdict
    return QualityGateResult("reject", str(judged.get("reason", "rejected by the verifier")), verdict.wo_id)
