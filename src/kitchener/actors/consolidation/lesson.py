"""Turns a consolidation's answer into an overlay. Pure.

The model chooses words, labels and weights. The sources come from the counted signals, never from the model's answer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kitchener.actors.executor.answers import UnreadableAnswer, read_answer
from kitchener.choices import LABEL_KINDS
from kitchener.ids import SessionId, SubjectId
from kitchener.ledger import StoredEntry
from kitchener.memory.learned_lines import tidy
from kitchener.memory.signals import SignalAccumulator
from kitchener.model_usage import Usage
from kitchener.records import events
from kitchener.records.entries import ModelCallPayload, opened, payload_as
from kitchener.records.outputs import LearnedOutput
from kitchener.records.prompt import PromptResponse
from kitchener.times import iso_text

RECENT_EVENTS: Final = 20
"""Newest events of a signal that a consolidation shows the model."""
MESSAGE_CHARS: Final = 500
"""Longest part of a user's message that a consolidation shows the model, characters."""
_MAX_LABELS: Final = 8
_MAX_LABEL_CHARS: Final = 64
_UNKNOWN: Final = "unknown"
_NO_LABELS: Final[Mapping[str, tuple[str, ...]]] = dict.fromkeys(LABEL_KINDS, ())


@dataclass(frozen=True, slots=True)
class Case:
    """One signal to consolidate, with the facts from when its gate opened."""

    namespace: str
    """The memory namespace, `agent_class/subject_id`."""
    subject_id: SubjectId
    """The subject of the namespace."""
    signal_id: str
    """The signal's id in plain text."""
    stored_id: str
    """The signal's id in the form that the ledgers store."""
    gate_ts: str
    """When the gate opened, ISO time: the end of the overlay's window."""
    session_id: SessionId
    """The pseudo-session of the consolidation."""
    signals_position: int
    """Position of the newest signal entry that was counted."""
    evidence: SignalAccumulator
    """The counted events of the signal."""


def overlay_of(case: Case, output: LearnedOutput, trace: Sequence[StoredEntry]) -> dict[str, Any]:
    """Builds the overlay from the model's output. Its sources are the counted events, never the model's claims.

    Args:
        case: the signal and its counted events
        output: the output of the work order
        trace: HO1's entries of the work order, in order
    """
    call = next((entry.payload for entry in reversed(trace) if entry.entry_type == events.LLM_CALL), {})
    given = output.get("labels")
    labels = {kind: _tidy_labels(given.get(kind)) for kind in LABEL_KINDS} if isinstance(given, Mapping) else _NO_LABELS
    evidence = case.evidence
    return {
        "signal_id": case.signal_id,
        "artifact_type": output.get("category"),
        "labels": labels,
        "weight": output.get("salience_weight"),
        "scope": "agent" if any(labels.values()) else "global",
        "context_line": tidy(str(output.get("context_line", ""))),
        "expires_at_event_ts": None,
        "source_signal_ids": (case.signal_id,),
        "source_event_ids": evidence.event_ids,
        "gate_snapshot": {"count": evidence.count, "sessions": len(evidence.session_ids)},
        "model": call.get("model_id") or _UNKNOWN,
        "prompt_pack_version": call.get("prompt_pack_version") or _UNKNOWN,
        "consolidation_event_ts": case.gate_ts,
        "salience_weight": output.get("salience_weight"),
        "decay_modifier": output.get("decay_modifier"),
        "content": {"bias": tidy(str(output.get("bias", ""))), "category": output.get("category")},
        "window_start": iso_text(evidence.first_seen),
        "window_end": case.gate_ts,
    }


def _tidy_labels(labels: object) -> tuple[str, ...]:
    given = labels if isinstance(labels, Iterable) else ()
    tidied = (tidy(label)[:_MAX_LABEL_CHARS] for label in given if isinstance(label, str))
    return tuple(dict.fromkeys(filter(None, tidied)))[:_MAX_LABELS]


def recorded_output(trace: Sequence[StoredEntry]) -> dict[str, object] | None:
    """Reads the output of a completed work order from HO1's entries; None if it was not completed or cannot be read."""
    if not trace or trace[-1].entry_type != events.WO_COMPLETED:
        return None
    entry = next((each for each in reversed(trace) if each.entry_type == events.LLM_CALL), None)
    if entry is None:
        return None
    call = payload_as(ModelCallPayload, entry.payload)
    answer = opened(call.get("response"))
    if answer is None or "text" not in answer:
        return None
    response = PromptResponse(
        provider_id=call["provider_id"],
        model_id=call["model_id"],
        text=answer["text"],
        structured=answer.get("structured"),
        usage=Usage(0, 0),
        finish_reason=call["finish_reason"],
    )
    output = read_answer(response, plain_text=False)
    return None if isinstance(output, UnreadableAnswer) else output
