"""Finds the first field in which two payloads of one entry differ. Pure.

It ignores fields that no decision depends on: durations, options of the caller, and hashes of the whole configuration,
which a report shows separately. Hashes are compared after the fields that they cover, so that the first difference is a
readable value.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from kitchener.records import events

_LEFT_OUT: Final[Mapping[str, frozenset[str]]] = {
    events.TURN_STARTED: frozenset(("idempotency_key", "idempotency_scope", "ruleset_hash", "config_hash", "overlap")),
    events.DEGRADATION: frozenset(("error",)),
    events.HO3_OVERLAY: frozenset(("created_at",)),
}
"""Fields that are not compared, by entry type."""
_OF_POLICY: Final = frozenset(("ruleset_hash",))
"""Fields that name the policy. They are ignored if the turn was recorded under another policy; the report says so."""
_TIMES: Final = frozenset(("latency_ms", "elapsed_ms", "timeout_ms"))
"""Durations and time limits; ignored at any depth of a payload."""
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
_ABSENT: Final = "(absent)"


class Difference(NamedTuple):
    """The first difference of two payloads."""

    path: str
    recorded: object
    recomputed: object


def first_difference(
    entry_type: str, recorded: Mapping[str, object], recomputed: Mapping[str, object], *, policy_differs: bool = False
) -> Difference | None:
    """Where two payloads of this type begin to differ, or None.

    Args:
        entry_type: of both
        recorded: as it was read, opened where it was sealed
        recomputed: as JSON types
        policy_differs: the turn was recorded under another policy
    """
    left_out = _LEFT_OUT.get(entry_type, frozenset()) | (_OF_POLICY if policy_differs else frozenset())
    return _in_mapping(recorded, recomputed, "", left_out)


def _in_mapping(
    recorded: Mapping[str, object], recomputed: Mapping[str, object], at: str, left_out: frozenset[str] = frozenset()
) -> Difference | None:
    for key in sorted({*recorded, *recomputed} - left_out - _TIMES, key=_rank):
        path = f"{at}.{key}" if at else key
        found = _in_value(recorded.get(key, _ABSENT), recomputed.get(key, _ABSENT), path)
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
