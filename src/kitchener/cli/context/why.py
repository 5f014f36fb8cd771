"""Explains what a turn was shown, where, why, and what would change it; and compares two turns."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from kitchener.cli.context.shown_requests import totals_line
from kitchener.cli.context.text import MOST, how_to_turn_on, intent_words, shown_lines
from kitchener.context import Explanation, make_event
from kitchener.context.fold.context_events import Ended
from kitchener.context.projection.explanation import VisibilityChange, closer_words, find_placed
from kitchener.inspection.shown_text import one_line, short_time
from kitchener.inspection.turn_views.recorded_turn import TurnView
from kitchener.inspection.turn_views.turn_breaks import break_text
from kitchener.inspection.turn_views.turn_reasons import INEXACT, visibility_changes
from kitchener.plain_names import counted
from kitchener.records import events

_WIDTH: Final = 96
_CONTEXT_LINES: Final = 4


def head_lines(view: TurnView) -> Iterator[str]:
    """The turn and its intent."""
    yield f"turn {view.turn_id}  {short_time(view.started_at)}  “{one_line(view.message, 60)}”"
    yield totals_line(view.spent, view.turn_id)
    yield from (f"  {line}" for line in view.spent.nested_lines())
    if view.breaks:
        yield f"  {break_text(view.breaks)}"
    completed = view.end.completed
    if completed is None or completed.get("error") is not None or completed.get("truncated"):
        yield f"  {view.end.words}"
    yield from (f"  {line}" for line in view.approvals.lines())
    if view.mode == "shadow":
        yield "  shadow: this was decided beside the turn; what the model saw was chosen by attention"
    if view.projection is not None:
        yield f"  intent {intent_words(view.state, view.projection.intent_id)}"
    yield from _closings(view)
    yield from (f"  {each}" for each in doubts(view))


def doubts(view: TurnView) -> Iterator[str]:
    """Ways in which the explanation may differ from the turn: texts that can no longer be read, and sizes."""
    if view.past.unreadable:
        yield f"shown as erased below: {view.past.unreadable}"
    if not view.is_exact:
        yield INEXACT


def _closings(view: TurnView) -> Iterator[str]:
    """The intents that the turn closed, and who closed them."""
    for entry in view.later:
        event = make_event(entry.entry_type, entry.entity_id, entry.timestamp, entry.payload, entry.ref)
        is_own = entry.entry_type == events.INTENT_CLOSED and events.read_common(entry).get("turn_id") == view.turn_id
        if event is not None and is_own and isinstance(event.facts, Ended):
            yield f"  closed after the reply: {entry.entity_id}, by {closer_words(event.facts.closed_by)}"


def nothing_lines(view: TurnView) -> Iterator[str]:
    """Why there is no projection, and what was recorded instead."""
    yield f"  nothing was projected: {view.why_nothing}"
    if view.gathered:
        yield f"  attention showed {', '.join(view.gathered)}"
    for flag in view.flags:
        if str(flag.get("detail")) not in view.why_nothing:
            yield f"  flag {flag.get('kind')}: {flag.get('detail')!s}"
    if view.mode == "off":
        yield f"  = help: {how_to_turn_on(view.past.agent_class)}; turns after that can be explained"


def turn_lines(view: TurnView) -> Iterator[str]:
    """Everything about a turn."""
    yield from head_lines(view)
    if view.projection is None:
        yield from nothing_lines(view)
        return
    yield ""
    yield from shown_lines(view.projection)
    for flag in view.flags:
        yield f"flag {flag.get('kind')}: {flag.get('detail')!s}"
    others = [each for each in view.explain_all() if not each.is_eligible]
    ended = [each for each in others if each.verdict == "not_live" and each.entity_id in view.state.work_orders]
    told = [each for each in others if each not in ended]
    if others:
        yield f"not eligible: {len(others):,}"
    for each in islice(told, MOST):
        yield f"  {each.text}"
    if len(told) > MOST:
        yield f"  … and {len(told) - MOST:,} more; --json lists them all"
    if ended:
        yield f"  {counted(len(ended), 'work order')} that ended before; the results are in the turns"
    yield f"= one of them in full: kitchener context explain {view.turn_id} --entry ID"


def entry_lines(view: TurnView, found: Explanation) -> Iterator[str]:
    """One item in full."""
    yield from head_lines(view)
    placed = find_placed(view.projection, found.entity_id) if view.projection is not None else None
    kind = placed.item.kind if placed is not None else _kind(view, found.entity_id)
    yield ""
    yield f"{found.verdict.replace('_', ' ')}: {found.entity_id}{f' ({kind})' if kind else ''}"
    if found.since is not None:
        entry = next((e for e in (*view.past.entries, *view.later) if e.ref == found.since), None)
        told = f"  {entry.entry_type}  {short_time(entry.timestamp)}" if entry is not None else ""
        yield f"  --> {found.since.ledger_id} {found.since.entry_id}{told}"
    said = _item_text(view, found)
    if said:
        yield "   |"
        for line in said:
            yield f"   | {line}"
        yield "   |"
    yield f"   = {found.text}"
    for line in _help(view, found):
        yield f"   = help: {line}"


def _kind(view: TurnView, entity_id: str) -> str:
    state = view.state
    for kind, known in (("intent", state.intents), ("work order", state.work_orders), ("turn", state.turns)):
        if entity_id in known:
            return kind
    return ""


def _item_text(view: TurnView, found: Explanation) -> list[str]:
    """The text of the item, shortened."""
    placed = find_placed(view.projection, found.entity_id) if view.projection is not None else None
    state, name = view.state, found.entity_id
    if placed is not None:
        text = placed.item.text
    elif name in state.turns:
        text = state.turns[name].text
    elif name in state.intents:
        text = f"Goal: {state.intents[name].facts.objective}"
    elif name in state.work_orders:
        text = state.work_orders[name].item(state.estimate).text
    else:
        return []
    lines = [one_line(line, _WIDTH) for line in text.split("\n") if line.strip()]
    return lines if len(lines) <= _CONTEXT_LINES else [*lines[:_CONTEXT_LINES], "…"]


def _help(view: TurnView, found: Explanation) -> Iterator[str]:
    """The change that would have altered the verdict."""
    session_id, projection = view.past.session_id, view.projection
    if found.suppressed_by == "BUDGET_EVICTION" and projection is not None:
        enough = projection.token_budget + found.short_by
        yield f"with context_budget = {enough} it would have been shown in full"
        yield f"what a turn would see now: kitchener context project --session {session_id} --budget {enough}"
    elif found.suppressed_by == "LOW_URGENCY":
        yield "turns are shown if they are among the newest (newest_turns) or share telling words with the message"
    elif found.verdict == "not_live":
        intent_id = _ended_intent(view, found.entity_id)
        if intent_id is not None:
            yield f"kitchener intent reopen {intent_id} --session {session_id} --reason TEXT brings it back"
    elif found.verdict == "unreachable":
        yield "an intent that is declared with --parent INT-… reaches what belongs to its parent"
    elif found.verdict == "invalid" and found.since is not None:
        yield f"kitchener session repair {session_id} --void {found.since.entry_id} --reason TEXT voids it"


def _ended_intent(view: TurnView, name: str) -> str | None:
    """The ended intent that would have to be reopened to make the item eligible; None: there is none."""
    if name in view.state.intents:
        return name
    turn = view.state.turns.get(name)
    return turn.intent_id if turn is not None else None


def diff_lines(before: TurnView, after: TurnView) -> Iterator[str]:
    """The differences as lines of text."""
    for sign, view in (("-", before), ("+", after)):
        lines = [*head_lines(view), *(nothing_lines(view) if view.projection is None else ())]
        yield f"{sign} {lines[0]}"
        yield from (f"  {line}" for line in lines[1:])
    came_in, went_out, notes = visibility_changes(before, after)
    yield ""
    yield f"came in: {len(came_in)}"
    for each, why in came_in:
        yield from _lines("+", each, why)
    yield f"went out: {len(went_out)}"
    for each, why in went_out:
        yield from _lines("-", each, why)
    for note in notes:
        yield f"also: {note}"


def _lines(sign: str, change: VisibilityChange, why: str) -> Iterator[str]:
    yield f"  {sign} {change.entity_id} ({change.kind.replace('_', ' ')})"
    yield f"      {why}"
