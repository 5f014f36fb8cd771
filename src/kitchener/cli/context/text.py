"""Formats decisions about context as text: tables of shown items, conflicts, invalid entries."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from kitchener.cli.context.project import ProjectionPreview
from kitchener.cli.terminal.output import table_lines
from kitchener.config.settings_parser import toml_key
from kitchener.context import ContextState, Flag, PlacedItem, Projection
from kitchener.context.fold.items import count_turns
from kitchener.context.fold.lifecycle import IntentRecord
from kitchener.inspection.shown_text import one_line, short_time
from kitchener.plain_names import counted

MOST: Final = 20
"""Most printed rows of one table; `--json` has all rows."""
_WIDTH: Final = 56
_WORDS: Final[Mapping[str, str]] = {
    "GLOBAL_INVARIANT": "a standing rule",
    "DEFINES_INTENT": "says what the intent is",
    "OPEN_WO": "open",
    "FAILED_WO": "failed",
    "REACHABLE_FROM_INTENT": "belongs to the intent",
    "HO3_BIAS": "learned about the subject",
    "TOOL_RESULT": "a tool's result that no reply has repeated",
    "RECALLED": "recalled from elsewhere",
    "RECENT": "among the session's newest turns",
}


def intent_words(state: ContextState, intent_id: str | None) -> str:
    """An intent's id and objective, as text."""
    if intent_id is None:
        return "none"
    record = state.intents.get(intent_id)
    return intent_id if record is None else f"{intent_id}  “{one_line(record.facts.objective, _WIDTH)}”"


def how_to_turn_on(agent_class: str) -> str:
    """The setting that turns on the Context Authority."""
    table = toml_key(("agents", agent_class))
    setting = f'`context_mode = "enforce"` below [{table}] of kitchener.toml'
    return f"{setting} turns the Context Authority on, as `kitchener init` writes it"


def shown_lines(projection: Projection) -> Iterator[str]:
    """The visible and the suppressed items, each with tokens and reason."""
    visible, suppressed = projection.visible, list(projection.suppressed())
    used = f"{projection.tokens_used:,} of {projection.token_budget:,} tokens"
    yield f"visible: {counted(len(visible), 'item')}, {used}"
    yield from _table(("tokens", "id", "kind", "why", "text"), [_visible_row(each) for each in visible])
    if suppressed:
        yield f"left out: {counted(len(suppressed), 'item')}"
        columns = ("needs", "id", "kind", "shown_as", "why")
        yield from _table(columns, [_suppressed_row(each, projection) for each in _most_missed(suppressed)])
        yield from _rest(len(suppressed))
    if projection.counted is not None:
        yield f"  {projection.counted.text}"


def flag_lines(flags: Iterable[Flag]) -> Iterator[str]:
    """Warnings for the reader."""
    for flag in flags:
        yield f"flag {flag.kind}: {flag.detail}"


def projected_lines(projected: ProjectionPreview) -> Iterator[str]:
    """The output of `context project`, if no problem prevents a projection."""
    past, state, projection = projected.past, projected.state, projected.projection
    assert projection is not None
    yield f"{past.name} ({past.agent_class}): {counted(count_turns(state.turns.values()), 'turn')} on record"
    yield f"active intent: {intent_words(state, projected.resolution.active)}"
    if not state.intents:
        hint = f"; {how_to_turn_on(past.agent_class)}" if past.config.context_mode == "off" else ""
        yield f"  no intent was ever declared in this session{hint}"
    yield ""
    yield from shown_lines(projection)
    yield from flag_lines(projected.flags)


def conflict_lines(state: ContextState, competing: Sequence[str], session_id: str) -> Iterator[str]:
    """The competing intents, numbered, and how to choose one of them."""
    session_id = session_id or "SES-…"
    yield f"blocked: {len(competing)} intents of {session_id} are live, and none supersedes the others"
    yield "  this blocks projection until it is resolved; nothing is projected"
    yield from thread_lines([state.intents[each] for each in competing], state)
    yield "  = choose: kitchener chat --session " + session_id + ", then /intents keep N, or answer with its number"
    yield f"  = or end the others: kitchener intent close {competing[0]} --session {session_id}"
    yield (
        "  = or preview one of them: kitchener context project --intent " + competing[0] + " --conflict-policy most_recent_wins"
    )


def thread_lines(records: Iterable[IntentRecord], state: ContextState) -> Iterator[str]:
    """Intents with the numbers by which a user chooses."""
    for number, record in enumerate(records, 1):
        attached = state.attached(record.intent_id)
        work = f", {counted(len(attached.work_orders), 'work order')} open" if attached.work_orders else ""
        yield f"  {number}. {intent_words(state, record.intent_id)}  {counted(count_turns(attached.turns), 'turn')}{work}"


def invalid_lines(state: ContextState, session_id: str) -> Iterator[str]:
    """Invalid entries, and what to do about them."""
    found = counted(len(state.invalid), "entry", "entries")
    yield f"invalid life cycle: {found} of {session_id} cannot follow what came before"
    for ref, invalid in islice(state.invalid.items(), MOST):
        yield f"  {invalid.event.kind} of {invalid.event.entity_id}"
        yield f"    --> {ref.ledger_id} {ref.entry_id}  {short_time(invalid.event.timestamp)}"
        yield f"    = {invalid.problem}"
    yield from _rest(len(state.invalid))
    first = next(iter(state.invalid)).entry_id
    yield f"  = remedy: kitchener session repair {session_id} --void {first} --reason TEXT"


def _table(columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> Iterator[str]:
    if rows:
        for line in table_lines(columns, rows):
            yield f"  {line}"


def _most_missed(suppressed: Sequence[PlacedItem]) -> list[PlacedItem]:
    """The suppressed items, most interesting first: items that nearly fitted, then items that were not admitted, each newest
    first."""
    nearly = [each for each in suppressed if each.reason != "LOW_URGENCY"][-MOST:]
    others = [each for each in suppressed if each.reason == "LOW_URGENCY"]
    return [*nearly, *others[max(0, len(others) + len(nearly) - MOST) :]]


def _rest(count: int) -> Iterator[str]:
    if count > MOST:
        yield f"  … and {count - MOST:,} more; --json lists them all"


def reason_words(reasons: Iterable[str]) -> str:
    """Why something is eligible, in words."""
    return ", ".join([_WORDS.get(each, each) for each in reasons])


def _visible_row(placed: PlacedItem) -> dict[str, object]:
    item = placed.item
    text = item.text.removeprefix("user: ") if item.kind in ("turn", "evidence") else item.text
    shape = ", in its shortest form" if placed.is_compact else ""
    return {
        "tokens": placed.tokens,
        "id": item.entity_id,
        "kind": item.kind.replace("_", " "),
        "why": reason_words(item.reasons) + shape,
        "text": one_line(text, _WIDTH),
    }


def _suppressed_row(placed: PlacedItem, projection: Projection) -> dict[str, object]:
    item = placed.item
    if placed.reason == "BUDGET_EVICTION":
        why = f"BUDGET_EVICTION, {placed.short_by:,} tokens short"
    elif placed.reason == "DEFERRED":
        why = "DEFERRED, its intent or work order is deferred"
    elif placed.reason == "ERASED":
        why = "ERASED, with its subject"
    elif placed.short_by:
        why = f"LOW_URGENCY, others ranked before it; {placed.short_by:,} tokens short of the {max(0, projection.free):,} left"
    else:
        why = "LOW_URGENCY, others ranked before it"
    return {
        "needs": item.tokens,
        "id": item.entity_id,
        "kind": item.kind.replace("_", " "),
        "shown_as": "a stub" if placed.form == "STUB" else "nothing",
        "why": why,
    }
