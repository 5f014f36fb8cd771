"""Finds the first field in which two payloads of one entry differ, and says where its value comes from. Pure.

It ignores fields that no decision depends on: durations, options of the caller, and hashes of the whole configuration,
which a report shows separately. Hashes are compared after the fields that they cover, so that the first difference is a
readable value. `line_diff` compares two texts.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kitchener.records import events
from kitchener.records.entries import TurnCompletedPayload, opened, payload_as

_LEFT_OUT: Final[Mapping[str, frozenset[str]]] = {
    events.TURN_STARTED: frozenset(("idempotency_key", "idempotency_scope", "ruleset_hash", "config_hash", "overlap")),
    events.WO_PLANNED: frozenset(("config_hash",)),
    events.DEGRADATION: frozenset(("error",)),
    events.TURN_COMPLETED: frozenset(("truncated",)),  # follows from `finish_reason`; earlier records lack it
    events.PROJECTION_COMPUTED: frozenset(("authority",)),  # `signatures.py` checks it
    events.HO3_OVERLAY: frozenset(("created_at",)),
}
"""Fields that are not compared, by entry type."""
_OF_POLICY: Final = frozenset(("ruleset_hash",))
"""Fields that name the policy. They are ignored if the turn was recorded under another policy; the report says so."""
_TIMES: Final = frozenset(("latency_ms", "elapsed_ms", "timeout_ms"))
"""Durations and time limits; ignored at any depth of a payload."""
_MOST_LINES: Final = 1_000
"""Longest text that is compared line by line; comparing takes up to the square of it."""
_FIRST: Final = (
    "wo_type",
    "intent_id",
    "action",
    "decision",
    "visible",
    "suppressed",
    "eligible",
    "reasons",
    "biases",
    "error",
    "constraints",
    "attention",
)
"""Fields that are compared first, because they explain a difference best."""
_REFS: Final = frozenset(("part_refs", "input_refs", "proof_refs"))
"""Fields that are compared last: they differ whenever an entry that they refer to differs."""
ABSENT: Final = "(absent)"
"""Stands for the value of a field that a payload lacks."""


class Difference(NamedTuple):
    """The first difference of two payloads."""

    path: str
    recorded: object
    recomputed: object


def first_difference(
    entry_type: str, recorded: Mapping[str, object], recomputed: Mapping[str, object], *, policy_differs: bool = False
) -> Difference | None:
    """The first difference of two payloads, or None.

    Args:
        entry_type: the type of both entries
        recorded: the recorded payload, decrypted
        recomputed: the payload of the replay, as JSON types
        policy_differs: the turn was recorded under another policy
    """
    left_out = _LEFT_OUT.get(entry_type, frozenset()) | (_OF_POLICY if policy_differs else frozenset())
    if entry_type == events.TURN_COMPLETED:
        recorded, recomputed = _without_summary(recorded), _without_summary(recomputed)
    return _in_mapping(recorded, recomputed, "", left_out)


def _without_summary(completed: Mapping[str, object]) -> Mapping[str, object]:
    """Omits the text of an error about rejected replies. It sums up `WO_FAILED` and `ESCALATION`, which are compared, and
    earlier records give less of them."""
    error = opened(payload_as(TurnCompletedPayload, completed).get("error"))
    if not isinstance(error, Mapping) or error.get("kind") != "QUALITY_GATE":
        return completed
    return {**completed, "error": {name: value for name, value in error.items() if name != "message"}}


def _in_mapping(
    recorded: Mapping[str, object], recomputed: Mapping[str, object], at: str, left_out: frozenset[str] = frozenset()
) -> Difference | None:
    for key in sorted({*recorded, *recomputed} - left_out - _TIMES, key=_rank):
        path = f"{at}.{key}" if at else key
        found = _in_value(recorded.get(key, ABSENT), recomputed.get(key, ABSENT), path)
        if found is not None:
            return found
    return None


def _in_value(recorded: object, recomputed: object, at: str) -> Difference | None:
    if isinstance(recorded, dict) and isinstance(recomputed, dict):
        return _in_mapping(recorded, recomputed, at)
    if isinstance(recorded, list) and isinstance(recomputed, list):
        if len(recorded) != len(recomputed):
            return Difference(at, recorded, recomputed)
        if all(isinstance(each, str) for each in (*recorded, *recomputed)):
            return Difference(at, recorded, recomputed) if recorded != recomputed else None
        for number, (before, after) in enumerate(zip(recorded, recomputed, strict=True)):
            if (found := _in_value(before, after, f"{at}[{number}]")) is not None:
                return found
        return None
    is_equal = recorded == recomputed and isinstance(recorded, bool) == isinstance(recomputed, bool)
    return None if is_equal else Difference(at, recorded, recomputed)


def _rank(key: str) -> tuple[int, int, str]:
    late = 2 if key.endswith("_ref") or key in _REFS else 1 if key.endswith("_hash") else 0
    return (late, _FIRST.index(key) if key in _FIRST else len(_FIRST), key)


_INPUTS: Final[Mapping[str, str]] = {
    "classify": "the message, the newest turns, labels_vocabulary, the tools' descriptions and the active objective",
    "tool_call": "the tool and its arguments, as the classification requested them",
    "synthesize": "the message, its classification, tool results, the assembled context, instructions and standing rules",
    "consolidate": "the signal's events as of its gate, with the messages of their turns",
    "verify": "the reply, its acceptance criteria and the message",
}
_TYPES: Final[Mapping[str, str]] = {
    events.SESSION_START: "the start of the session",
    events.TURN_STARTED: "the message and the turn's moment",
    events.PART_ATTACHED: "the images and files of the message",
    events.WO_EXECUTING: "the plan of the turn's work orders",
    events.LLM_CALL: "the model's answer, as it was recorded",
    events.WO_COMPLETED: "the model's recorded answer, read under the contract's output schema, and what it cost",
    events.WO_FAILED: "the failure of a model, of a tool or of the check of an answer",
    events.TOOL_STARTED: "the model's request for a tool",
    events.TOOL_CALL: "the tool's recorded result, or the check of its arguments",
    events.WO_PLANNED: "the plan of the turn's work orders: the classification, the tools allowed, budgets and retries",
    events.WO_QUALITY_GATE: "the quality gate's verdict on the reply",
    events.WO_CHAIN_COMPLETE: "the sum of the turn's work orders",
    events.ESCALATION: "the quality gate's retries (max_retries)",
    events.DEGRADATION: "a component that failed",
    events.PROJECTION_COMPUTED: "the Context Authority's projection: the session's intents and turns, under the ruleset",
    events.CONFLICT_FLAG: "the Context Authority's view of the session's intents",
    events.INTENT_SHADOW_DECISION: "the classification's intent relation, under the ruleset",
    events.HO3_SIGNAL: "the turn's signals: its classification's labels, its tools and its outcome",
    events.HO3_OVERLAY: "the model's answer, the signal's events as of its gate, and the settings of long-term memory",
    events.HO3_OVERLAY_DEACTIVATED: "the earlier artifacts of the signal (supersede_on_renewal)",
    events.TURN_COMPLETED: "the sums of the turn",
}
_FIELDS: Final[Mapping[tuple[str, str], str]] = {
    (events.TURN_COMPLETED, "consolidation_candidates"): (
        "the gates of long-term memory: the subject's signals as of gate_ts, and the gate's thresholds"
    ),
    (
        events.TURN_STARTED,
        "policy_version",
    ): "the rules that the turn followed; a newer version of Kitchener may have recorded it",
    (events.LLM_CALL, "route"): "the route of the request: default provider and model, routes by domain tag, and fallbacks",
    (events.LLM_CALL, "request_fields"): "the fields that the settings of the provider add to its requests",
    (events.WO_PLANNED, "attention"): "the gathered context: the session's newest turns, rules and learned lines",
    (events.WO_PLANNED, "intent_id"): "the intent that the message serves",
}


def stems_from(
    entry_type: str, path: str, recorded: Mapping[str, object], now: Mapping[str, object], *, policy_differs: bool
) -> str:
    """Where a field's value comes from, and what probably changed.

    Args:
        entry_type: the type of the entry
        path: the field in its payload
        recorded: the recorded payload
        now: the payload of the replay
        policy_differs: the turn was recorded under another policy
    """
    top = path.partition(".")[0].partition("[")[0]
    if top == "authority":
        return "who signed the projection: the last SIGNER_DECLARED before its turn, and the public keys on record"
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
    return "the request: tool results before this call, offered tools, output schema, model, or limits of the call"


def line_diff(before: Sequence[str], after: Sequence[str], old: str = "as recorded", new: str = "now") -> str:
    """A unified diff of two texts; "": they are equal. Of long texts only the numbers of lines.

    Args:
        before: the lines of the earlier text
        after: the lines of the later text
        old: the name of the earlier text
        new: the name of the later text
    """
    if before == after:
        return ""
    if len(before) > _MOST_LINES or len(after) > _MOST_LINES:
        return f"{len(before):,} lines {old}, {len(after):,} lines {new}; too many to compare line by line"
    return "\n".join(difflib.unified_diff(before, after, old, new, lineterm=""))
