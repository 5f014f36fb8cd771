"""What changed between the contexts of two turns, and why."""

from collections.abc import Iterator
from typing import Any

from kitchener.cli.context.turns import TurnView
from kitchener.cli.context.why import head_lines, nothing_lines
from kitchener.context import diff_projections
from kitchener.context.projection.explanation import VisibilityChange
from kitchener.errors import CallerError


def diff_json(before: TurnView, after: TurnView) -> dict[str, Any]:
    """What `context diff --json` prints."""
    came_in, went_out, notes = _changes(before, after)
    return {
        "before": before.turn_id,
        "after": after.turn_id,
        "came_in": [_change_json(each, why) for each, why in came_in],
        "went_out": [_change_json(each, why) for each, why in went_out],
        "notes": notes,
    }


def diff_lines(before: TurnView, after: TurnView) -> Iterator[str]:
    """The same for a reader."""
    for sign, view in (("-", before), ("+", after)):
        lines = [*head_lines(view), *(nothing_lines(view) if view.projection is None else ())]
        yield f"{sign} {lines[0]}"
        yield from (f"  {line}" for line in lines[1:])
    came_in, went_out, notes = _changes(before, after)
    yield ""
    yield f"came in: {len(came_in)}"
    for each, why in came_in:
        yield from _lines("+", each, why)
    yield f"went out: {len(went_out)}"
    for each, why in went_out:
        yield from _lines("-", each, why)
    for note in notes:
        yield f"also: {note}"


def _changes(
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
        notes.append("settings have changed since, or something was erased; what was shown is as recorded, sizes are today's")
    came_in = [(each, f"before: {_why(before, each)}") for each in found.came_in]
    went_out = [(each, f"after: {_why(after, each)}") for each in found.went_out]
    return came_in, went_out, notes


def _why(view: TurnView, change: VisibilityChange) -> str:
    """What the other turn says about an item."""
    try:
        return view.explain(change.entity_id).text
    except CallerError:  # a rule or a learned line of one turn is nowhere on the other's record
        return change.why


def _lines(sign: str, change: VisibilityChange, why: str) -> Iterator[str]:
    yield f"  {sign} {change.entity_id} ({change.kind.replace('_', ' ')})"
    yield f"      {why}"


def _change_json(change: VisibilityChange, why: str) -> dict[str, Any]:
    return {"entity_id": change.entity_id, "kind": change.kind, "why": why}
