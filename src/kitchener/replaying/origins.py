"""Names the origin of a ledger field, so that the reader of a divergence knows where to look. Pure."""

from collections.abc import Mapping
from typing import Final

from kitchener.records import events

_INPUTS: Final[Mapping[str, str]] = {
    "classify": "the message, the newest turns, labels_vocabulary, the tools' descriptions and the active objective",
    "tool_call": "the tool and its arguments, as the classification asked for them",
    "synthesize": "the message, its classification, tool results, the assembled context, instructions and standing rules",
    "consolidate": "the signal's events as of its gate, with the messages of their turns",
    "verify": "the reply, its acceptance criteria and the message",
}
_TYPES: Final[Mapping[str, str]] = {
    events.SESSION_START: "how the session was started",
    events.TURN_STARTED: "the message and the turn's moment",
    events.WO_EXECUTING: "the plan of the turn's work orders",
    events.LLM_CALL: "the model's answer, as it was recorded",
    events.WO_COMPLETED: "the model's recorded answer, read under the contract's output schema, and what it cost",
    events.WO_FAILED: "what a model, a tool or the check of an answer had failed with",
    events.TOOL_STARTED: "the model's request for a tool",
    events.TOOL_CALL: "the tool's recorded result, or the check of its arguments",
    events.WO_PLANNED: "the plan of the turn's work orders: the classification, the tools allowed, budgets and retries",
    events.WO_QUALITY_GATE: "the quality gate's verdict on the reply",
    events.WO_CHAIN_COMPLETE: "the sum of the turn's work orders",
    events.ESCALATION: "the quality gate's retries (max_retries)",
    events.DEGRADATION: "a part that failed",
    events.ATTEMPT_STARTED: "the route of the request: default provider and model, routes by domain tag, and fallbacks",
    events.PROJECTION_COMPUTED: "the Context Authority's projection: the session's intents and turns, under the ruleset",
    events.CONFLICT_FLAG: "the Context Authority's view of the session's intents",
    events.INTENT_SHADOW_DECISION: "the classification's intent relation, under the ruleset",
    events.HO3_SIGNAL: "the turn's signals: its classification's labels, its tools and its outcome",
    events.HO3_OVERLAY: "what the model said, the signal's events as of its gate, and the settings of long-term memory",
    events.HO3_OVERLAY_DEACTIVATED: "the artifacts that the signal had before (supersede_on_renewal)",
    events.TURN_COMPLETED: "what the turn added up to",
}
_FIELDS: Final[Mapping[tuple[str, str], str]] = {
    (events.TURN_COMPLETED, "consolidation_candidates"): (
        "the gates of long-term memory: the subject's signals as of gate_ts, and the gate's thresholds"
    ),
    (events.WO_PLANNED, "attention"): "what was gathered for the model: the session's newest turns, rules and learned lines",
    (events.WO_PLANNED, "intent_id"): "the intent that the message serves",
}


def stems_from(
    entry_type: str, path: str, recorded: Mapping[str, object], now: Mapping[str, object], *, policy_differs: bool
) -> str:
    """Where a field's value comes from, and what is likely to have changed.

    Args:
        entry_type: the entry
        path: the field in its payload
        recorded: the recorded payload
        now: what was to be written
        policy_differs: the turn was recorded under another policy
    """
    top = path.partition(".")[0].partition("[")[0]
    if top == "request_hash":
        text = _request(recorded, now)
    elif entry_type == events.WO_PLANNED and top == "input_hash":
        text = f"the input of the {recorded.get('wo_type')} step: {_INPUTS.get(str(recorded.get('wo_type')), 'its fields')}"
    elif entry_type.startswith("INTENT_"):
        text = "the transition of intents: the classification's intent relation, under the ruleset"
    else:
        text = _FIELDS.get((entry_type, top)) or _TYPES.get(entry_type, "the step before it")
    return f"{text}; likely: the turn was recorded under another policy" if policy_differs else text


def _request(recorded: Mapping[str, object], now: Mapping[str, object]) -> str:
    before, after = recorded.get("prompt_pack_version"), now.get("prompt_pack_version")
    if before != after:
        return f"the prompt pack: recorded with {before}, now {after}"
    return "what the model was asked: tool results before this call, tools offered, output schema, model, or limits of the call"
