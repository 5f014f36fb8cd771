"""Compares stored payloads with the `TypedDict` of their entry's type, field by field."""

import types
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, ForwardRef, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints, is_typeddict

from kitchener.records import entries, events
from kitchener.records.entries import CommonPayload
from kitchener.sealed_values import is_sealed

Shape: TypeAlias = type[CommonPayload]

_EVERYWHERE: Final[dict[str, Shape]] = {
    events.SESSION_START: entries.SessionStartPayload,
    events.SESSION_END: entries.SessionEndPayload,
    events.TURN_STARTED: entries.TurnStartedPayload,
    events.TURN_REJECTED: entries.TurnRejectedPayload,
    events.PART_ATTACHED: entries.PartAttachedPayload,
    events.TURN_COMPLETED: entries.TurnCompletedPayload,
    events.TURN_ABORTED: entries.TurnAbortedPayload,
    events.WO_PLANNED: entries.WorkOrderPlannedPayload,
    events.WO_DISPATCHED: entries.WorkOrderDispatchedPayload,
    events.WO_EXECUTING: entries.ExecutingPayload,
    events.WO_COMPLETED: entries.WorkOrderCompletedPayload,
    events.WO_FAILED: entries.WorkOrderFailedPayload,
    events.WO_SUPERSEDED: entries.WorkOrderSupersededPayload,
    events.WO_ABANDONED: entries.WorkOrderAbandonedPayload,
    events.WO_RETIRED: entries.WorkOrderRetiredPayload,
    events.WO_DEFERRED: entries.WorkOrderDeferredPayload,
    events.WO_REOPENED: entries.WorkOrderReopenedPayload,
    events.WO_QUALITY_GATE: entries.QualityGatePayload,
    events.WO_CHAIN_COMPLETE: entries.ChainCompletePayload,
    events.ESCALATION: entries.EscalationPayload,
    events.DEGRADATION: entries.DegradationPayload,
    events.ATTEMPT_STARTED: entries.AttemptStartedPayload,
    events.ATTEMPT_FAILED: entries.AttemptFailedPayload,
    events.LLM_CALL: entries.ModelCallPayload,
    events.TOOL_STARTED: entries.ToolStartedPayload,
    events.TOOL_CALL: entries.ToolCallPayload,
    events.APPROVAL_REQUESTED: entries.ApprovalRequestedPayload,
    events.APPROVAL_RESOLVED: entries.ApprovalResolvedPayload,
    events.INTENT_DECLARED: entries.IntentDeclaredPayload,
    events.INTENT_SUPERSEDED: entries.IntentSupersededPayload,
    events.INTENT_REOPENED: entries.IntentReopenedPayload,
    events.INTENT_CLOSED: entries.IntentClosedPayload,
    events.INTENT_ABANDONED: entries.IntentAbandonedPayload,
    events.INTENT_RETIRED: entries.IntentRetiredPayload,
    events.INTENT_DEFERRED: entries.IntentDeferredPayload,
    events.INTENT_FORKED: entries.IntentForkedPayload,
    events.LIFECYCLE_VOIDED: entries.LifecycleVoidedPayload,
    events.SUBJECT_ERASED: entries.SubjectErasedPayload,
    events.SIGNER_DECLARED: entries.SignerDeclaredPayload,
    events.SEALING_CHANGED: entries.SealingChangedPayload,
    events.SESSION_IMPORTED: entries.SessionImportedPayload,
    events.ENTRY_IMPORTED: entries.ImportedPayload,
    events.CONTEXT_IMPORTED: entries.ImportedPayload,
    events.CONVERSATION_IMPORTED: entries.ConversationImportedPayload,
    events.MESSAGE_IMPORTED: entries.MessageImportedPayload,
    events.SOURCE_RECORDED: entries.SourceRecordedPayload,
    events.PROJECTION_COMPUTED: entries.ProjectionPayload,
    events.CONFLICT_FLAG: entries.ConflictFlagPayload,
    events.INTENT_SHADOW_DECISION: entries.ShadowDecisionPayload,
    events.HO3_SIGNAL: entries.SignalPayload,
    events.HO3_OVERLAY: entries.OverlayPayload,
    events.HO3_OVERLAY_DEACTIVATED: entries.OverlayDeactivatedPayload,
    events.HO3_OVERLAY_WEIGHT_UPDATED: entries.OverlayWeightPayload,
    events.HO3_QUARANTINED: entries.QuarantinePayload,
}
_IN_HO1M: Final[dict[str, Shape]] = {
    events.WO_COMPLETED: entries.ExecutionCompletedPayload,
    events.WO_FAILED: entries.ExecutionFailedPayload,
    events.WO_DEFERRED: entries.ExecutionDeferredPayload,
}
_OF_PROGRAMS: Final[dict[str, Shape]] = {events.HO3_SIGNAL: entries.LoggedSignalPayload}
"""What programs log, in its older version."""


def shape_of(ledger_id: str, entry_type: str) -> Shape:
    """The shape of an entry's payload; HO1m and HO2m record the end of a work order each in its own way."""
    own = _IN_HO1M.get(entry_type) if ledger_id.startswith("HO1M") else None
    return own or _EVERYWHERE[entry_type]


def shaped_types() -> frozenset[str]:
    """The entry types that have a shape."""
    return frozenset(_EVERYWHERE)


def every_shape() -> Iterator[tuple[str, Shape]]:
    """Each entry type with each shape of its payloads."""
    for table in (_EVERYWHERE, _IN_HO1M, _OF_PROGRAMS):
        yield from table.items()


def misfits(payload: Mapping[str, Any], shape: Shape) -> list[str]:
    """What of a payload is not as its shape says; empty where all is."""
    return list(_misfits(payload, shape, "payload"))


def _misfits(value: Any, kind: Any, at: str) -> Iterator[str]:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is object or isinstance(kind, ForwardRef):  # inside JSON there may be any JSON
        return
    if is_typeddict(kind):
        yield from _misfits_of_fields(value, kind, at)
    elif origin in (Union, types.UnionType):
        problems = [list(_misfits(value, each, at)) for each in arguments]
        if all(problems):
            yield min(problems, key=len)[0]
    elif origin in (list, Sequence, dict, Mapping):
        yield from _misfits_inside(value, origin, arguments, at)
    elif not (value in arguments if origin is Literal else _is_plain(value, kind)):
        yield f"{at} = {value!r:.60}: expected {kind}"


def _misfits_inside(value: Any, origin: Any, arguments: tuple[Any, ...], at: str) -> Iterator[str]:
    if origin in (list, Sequence):
        if not isinstance(value, list):
            yield f"{at} = {value!r:.60}: expected a list"
            return
        for number, each in enumerate(value):
            yield from _misfits(each, arguments[0], f"{at}[{number}]")
    elif not isinstance(value, dict) or is_sealed(value):
        yield f"{at} = {value!r:.60}: expected an object"
    else:
        for key, each in value.items():
            yield from _misfits(each, arguments[1], f"{at}.{key}")


def _misfits_of_fields(value: Any, kind: type[Any], at: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{at} = {value!r:.60}: expected {kind.__name__}"
        return
    hints, required = _fields_of(kind)  # type: ignore[arg-type]  # a class is hashable
    yield from (f"{at} lacks {name}" for name in sorted(required - value.keys()))
    yield from (f"{at} has {name}, which {kind.__name__} does not" for name in sorted(value.keys() - hints.keys()))
    for name in value.keys() & hints.keys():
        yield from _misfits(value[name], hints[name], f"{at}.{name}")


@cache
def _fields_of(kind: type[Any]) -> tuple[dict[str, Any], frozenset[str]]:
    return get_type_hints(kind), frozenset(kind.__dict__["__required_keys__"])


def _is_plain(value: Any, kind: Any) -> bool:
    if kind in (None, type(None)):
        return value is None
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind
