"""What a turn was shown and why, and what two turns were shown differently, as JSON types."""

from collections.abc import Sequence
from typing import Final

from kitchener.context import Explanation, diff_projections
from kitchener.context.projection.explanation import VisibilityChange
from kitchener.errors import CallerError, NotOnRecord
from kitchener.inspection.turn_views.recorded_turn import TurnView

INEXACT: Final = "settings have changed since, or something cannot be read; what was shown is as recorded, sizes are today's"
"""What a projection says that could not be made again as it was."""


def explanation_json(found: Explanation) -> dict[str, object]:
    return {
        "entity_id": found.entity_id,
        "verdict": found.verdict,
        "text": found.text,
        "form": found.form,
        "place": found.place,
        "reasons": list(found.reasons),
        "tokens": found.tokens,
        "suppressed_by": found.suppressed_by,
        "short_by": found.short_by,
        "since": found.since.as_mapping() if found.since is not None else None,
        "evidence_refs": [ref.as_mapping() for ref in found.evidence],
    }


def view_json(view: TurnView, found: Sequence[Explanation]) -> dict[str, object]:
    """What `context explain --json` prints."""
    projection = view.projection
    return {
        "turn_id": view.turn_id,
        "session_id": view.past.session_id,
        "mode": view.mode,
        "intent_id": projection.intent_id if projection is not None else None,
        "token_budget": projection.token_budget if projection is not None else None,
        "tokens_used": projection.tokens_used if projection is not None else None,
        "ruleset_hash": projection.ruleset_hash if projection is not None else None,
        "is_exact": view.is_exact,
        "unreadable": view.past.unreadable or None,
        "outcome": view.end.words,
        "error": view.end.error,
        "approvals": view.approvals.as_json(),
        "waited_for": view.end.waited_for or None,
        "why_nothing": view.why_nothing or None,
        "gathered": list(view.gathered),
        "calls": [each.as_json() for each in view.calls],
        "usage": view.spent.as_json(),
        "nested_turns": view.spent.nested_turns,
        "prefix_break": view.breaks if view.breaks is None else list(view.breaks),
        "flags": [{"kind": flag.get("kind"), "detail": flag.get("detail")} for flag in view.flags],
        "explanations": [explanation_json(each) for each in found],
    }


def diff_json(before: TurnView, after: TurnView) -> dict[str, object]:
    """What `context diff --json` prints."""
    came_in, went_out, notes = visibility_changes(before, after)
    return {
        "before": before.turn_id,
        "after": after.turn_id,
        "came_in": [_change_json(each, why) for each, why in came_in],
        "went_out": [_change_json(each, why) for each, why in went_out],
        "notes": notes,
    }


def visibility_changes(
    before: TurnView, after: TurnView
) -> tuple[list[tuple[VisibilityChange, str]], list[tuple[VisibilityChange, str]], list[str]]:
    """What came in and went out, each with what was or is the matter with it in the other turn."""
    if before.past.session_id != after.past.session_id:
        raise CallerError(
            f"{before.turn_id} and {after.turn_id} belong to different sessions, whose contexts have nothing in common"
        )
    if before.projection is None or after.projection is None:
        missing = before if before.projection is None else after
        return [], [], [f"{missing.turn_id} cannot be compared: {missing.why_nothing}"]
    found = diff_projections(before.projection, after.projection, state=after.state)
    notes = [*found.notes]
    if not (before.is_exact and after.is_exact):
        notes.append(INEXACT)
    came_in = [(each, f"before: {_why(before, each)}") for each in found.came_in]
    went_out = [(each, f"after: {_why(after, each)}") for each in found.went_out]
    return came_in, went_out, notes


def _why(view: TurnView, change: VisibilityChange) -> str:
    """What the other turn says about an item."""
    try:
        return view.explain(change.entity_id).text
    except NotOnRecord:  # a rule, a learned line or a tool's result of one turn is nowhere on the other's record
        return change.why


def _change_json(change: VisibilityChange, why: str) -> dict[str, object]:
    return {"entity_id": change.entity_id, "kind": change.kind, "why": why}
