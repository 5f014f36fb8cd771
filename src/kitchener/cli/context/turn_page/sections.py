"""Arranges a `TurnPage` as rows for its template. Contains every text in full, and marks long ones to be folded. Pure.

The page shows nothing that `context explain` does not print, too.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from kitchener.cli.context.shown_requests import as_readable, missing_lines
from kitchener.cli.context.text import intent_words, reason_words
from kitchener.cli.context.turn_page.request_rows import changed_requests, request_rows
from kitchener.cli.context.turn_page.shapes import Bar, FoldedText, bar_of, folded
from kitchener.cli.context.turn_page.turn_page import RecordedTool, TurnPage
from kitchener.cli.context.why import doubts, nothing_lines
from kitchener.context import Explanation, PlacedItem, Projection
from kitchener.context.fold import items
from kitchener.inspection.shown_text import UNREADABLE, short_time
from kitchener.inspection.turn_views.turn_end import current, shown_reply
from kitchener.inspection.turn_views.turn_reasons import visibility_changes
from kitchener.plain_names import counted
from kitchener.records import events
from kitchener.records.entries import IntentDeclaredPayload, IntentSupersededPayload, TurnCompletedPayload, payload_as
from kitchener.sealed_values import is_sealed

MOST_ROWS: Final = 500
"""Most rows of one table. The items left out grow with the session; `--json` lists all of them."""
_TIERS: Final[Mapping[int, str]] = {
    items.TIER_HEADER: "intent and rules",
    items.TIER_FAILED: "failed work orders",
    items.TIER_OPEN: "open work orders",
    items.TIER_BIAS: "learned lines",
    items.TIER_DEFERRED: "waiting work orders",
    items.TIER_RESULT: "results of tools",
    items.TIER_TURN: "turns",
}


class ItemRow(NamedTuple):
    """One item that was shown or left out."""

    place: int
    """Position in the projection, from 1."""
    entity_id: str
    kind: str
    tier: str
    why: str
    tokens: int
    """Tokens of the shown form; of the full form, if the item is left out."""
    shown: FoldedText


def sections_of(page: TurnPage) -> dict[str, object]:
    """The variables of the template."""
    view, completed = page.view, page.view.end.completed
    placed = _placed(page)
    others = [each for each, item in placed if item is None]
    ended = [each for each in others if each.verdict == "not_live" and each.entity_id in view.state.work_orders]
    calls = page.prompts.calls
    return {
        "turn_id": view.turn_id,
        "facts": list(_facts(page)),
        "problem": _problem(page),
        "intents": list(_intent_lines(page)),
        "message": folded("message", view.message),
        "reply": folded("reply", _reply(page, completed)),
        "notes": list(_notes(page)),
        "nothing": [] if view.projection is not None else [each.strip() for each in nothing_lines(view)],
        "is_projected": view.projection is not None,
        "budget": _budget(view.projection) if view.projection is not None else None,
        "budget_words": _budget_words(view.projection),
        "shown": [_shown(n, found, item) for n, (found, item) in enumerate(placed, 1) if item is not None and _is_full(item)],
        "left_out": _most(
            [_left_out(n, found, item) for n, (found, item) in enumerate(placed, 1) if item and not _is_full(item)]
        ),
        "others": _most([each.text for each in others if each not in ended]),
        "ended_work_orders": len(ended),
        "requests": request_rows(calls),
        "missing": list(missing_lines(page.prompts)),
        "prompt_problem": page.prompts.problem or "",
        "tools": [_tool(each) for each in page.tools],
        "learned": list(_learned(page)),
        "before": page.before.view.turn_id if page.before is not None else "",
        "changes": _changes(page),
        "changed_requests": changed_requests(page.before.prompts.calls, calls) if page.before is not None else [],
        "before_problem": (page.before.prompts.problem or "") if page.before is not None else "",
    }


class NewestRows(NamedTuple):
    """The shown rows, and the number of further ones."""

    rows: Sequence[object]
    rest: int


def _most(rows: Sequence[object]) -> NewestRows:
    """The last rows, which are the newest."""
    return NewestRows(rows[-MOST_ROWS:], max(0, len(rows) - MOST_ROWS))


def _facts(page: TurnPage) -> Iterator[tuple[str, str]]:
    view, past = page.view, page.view.past
    yield "session", past.session_id or "not named"
    yield "agent", past.agent_class
    yield "subject", past.subject_id or "not named"
    yield "began", short_time(view.started_at)
    if view.end.entry is not None:
        yield "ended", short_time(view.end.entry.timestamp)
    yield "outcome", view.end.words
    yield "context_mode", view.mode
    if view.projection is not None:
        yield "intent", intent_words(view.state, view.projection.intent_id)
    models = dict.fromkeys(f"{each.recorded['model_id']} of {each.recorded['provider_id']}" for each in view.calls)
    yield "models", ", ".join(models) or "no model answered in it"
    completed = view.end.completed
    cost = completed.get("cost_summary") if completed is not None else None
    if cost is not None:
        called = f"{counted(cost['llm_calls'], 'model call')}, {counted(cost['tool_calls'], 'tool call')}"
        served = cost.get("cached_tokens", 0)
        cached = f" ({served:,} of them from a cache)" if served else ""
        tokens = f"{cost['input_tokens']:,} tokens in{cached}, {cost['output_tokens']:,} out"
        yield "cost", f"{called}; {tokens}, as providers counted them"
    if page.prompts.config_hash:
        yield "settings", page.prompts.config_hash


def _problem(page: TurnPage) -> str:
    """The notice for the reader; "": there is none."""
    if any(each.is_verified is False for each in page.prompts.calls):
        return "A request below does not have its recorded hash: it is not what the model was asked."
    return ""


def _reply(page: TurnPage, completed: TurnCompletedPayload | None) -> str:
    if completed is None:
        return f"(none: {page.view.end.words})"
    return _text(shown_reply(completed))


def _text(value: object) -> str:
    """A recorded text or JSON value, for a reader."""
    if isinstance(value, str):
        return value
    return UNREADABLE if is_sealed(value) else as_readable(value)


_INTENT_WORDS: Final[Mapping[str, str]] = {
    events.INTENT_DECLARED: "declared",
    events.INTENT_SUPERSEDED: "superseded",
    events.INTENT_REOPENED: "reopened",
    events.INTENT_CLOSED: "closed",
    events.INTENT_ABANDONED: "abandoned",
    events.INTENT_RETIRED: "retired",
    events.INTENT_DEFERRED: "deferred",
    events.INTENT_FORKED: "forked",
}


def _intent_lines(page: TurnPage) -> Iterator[str]:
    """The changes of intents in the turn, and why."""
    for entry in page.entries:
        done = _INTENT_WORDS.get(entry.entry_type)
        if done is None:
            continue
        payload = current(entry)
        if entry.entry_type == events.INTENT_DECLARED:
            declared = payload_as(IntentDeclaredPayload, payload)
            yield f"{entry.entity_id} declared by {declared.get('created_by')}: “{_text(declared.get('objective'))}”"
            continue
        why = [_text(payload[name]) for name in ("outcome", "reason") if payload.get(name) is not None]
        superseded = payload_as(IntentSupersededPayload, payload)
        by = f" by {superseded['superseded_by_intent_id']}" if "superseded_by_intent_id" in superseded else ""
        yield f"{intent_words(page.view.state, entry.entity_id)} {done}{by}: {'; '.join(why) or 'no reason is on record'}"


def _notes(page: TurnPage) -> Iterator[str]:
    view = page.view
    if view.mode == "shadow":
        yield "In shadow: this was decided beside the turn. What the model saw was chosen by attention; its requests show it."
    yield from doubts(view)
    yield from view.approvals.lines()
    for flag in view.flags:
        yield f"flag {flag.get('kind')}: {flag.get('detail')}"


def _placed(page: TurnPage) -> list[tuple[Explanation, PlacedItem | None]]:
    """Every explanation, with its item if that is eligible or recalled."""
    projection, found = page.view.projection, page.view.explain_all()
    if projection is None:
        return []
    known: list[PlacedItem | None] = [*projection.visible, *projection.suppressed()]
    return list(zip(found, [*known, *[None] * (len(found) - len(known))], strict=True))


def _is_full(placed: PlacedItem) -> bool:
    return placed.form == "FULL"


def _tier(placed: PlacedItem) -> str:
    return "recalled evidence" if placed.item.kind == "evidence" else _TIERS.get(placed.item.tier, f"tier {placed.item.tier}")


def _shown(place: int, found: Explanation, placed: PlacedItem) -> ItemRow:
    why = reason_words(found.reasons) + (", in its shortest form" if placed.is_compact else "")
    return _row(place, placed, why, placed.tokens, placed.text)


def _left_out(place: int, found: Explanation, placed: PlacedItem) -> ItemRow:
    return _row(place, placed, found.text, placed.item.tokens, placed.item.text)


def _row(place: int, placed: PlacedItem, why: str, tokens: int, text: str) -> ItemRow:
    item = placed.item
    return ItemRow(place, item.entity_id, item.kind.replace("_", " "), _tier(placed), why, tokens, folded("", text))


def _budget(projection: Projection) -> Bar:
    """The budget by tier. Stubs count with their tier. Today's date, or tokens of unknown items, are a separate part."""
    sums: dict[str, int] = {}
    for placed in (*projection.visible, *projection.suppressed()):
        if placed.tokens:
            sums[_tier(placed)] = sums.get(_tier(placed), 0) + placed.tokens
    if projection.counted is not None:
        name = _TIERS[items.TIER_FAILED]
        sums[name] = sums.get(name, 0) + projection.counted.stub_tokens
    rest = projection.tokens_used - sum(sums.values())
    if rest > 0:
        sums["today's date" if projection.today else "no longer known"] = rest
    return bar_of(sums.items(), projection.token_budget)


def _budget_words(projection: Projection | None) -> str:
    return "" if projection is None else f"{projection.tokens_used:,} of {projection.token_budget:,} tokens"


class ToolRow(NamedTuple):
    """One call of a tool."""

    title: str
    arguments: FoldedText
    result: FoldedText


def _tool(tool: RecordedTool) -> ToolRow:
    outcome = tool.outcome
    if outcome is None:
        result = folded("result", "(none: the tool had not ended when the turn did)")
    elif outcome.get("error") is not None:
        result = folded("error", _text(outcome["error"]))
    elif outcome.get("question") is not None:
        result = folded("question", _text(outcome["question"]))
    else:
        result = folded("result", _text(outcome.get("result")))
    given = "(refused before it started)" if tool.arguments is None else _text(tool.arguments)
    return ToolRow(f"{tool.tool_id} for {tool.wo_id}", folded("arguments", given), result)


def _learned(page: TurnPage) -> Iterator[FoldedText]:
    """The learned lines and the recalled turns that the turn was shown."""
    projection = page.view.projection
    if projection is not None and page.view.mode == "enforce":
        for placed in projection.visible:
            if placed.item.kind in ("bias", "evidence"):
                yield folded(placed.item.entity_id, placed.text)
        return
    told: dict[str, None] = {}
    for call in page.prompts.calls:
        assembled = call.request.variables.get("assembled_context")
        told.update(dict.fromkeys(assembled.get("ho3_biases") or ()) if isinstance(assembled, Mapping) else {})
    for line in told:
        yield folded("learned line", line)


class ShownChanges(NamedTuple):
    """The items that only one of two turns shows."""

    came_in: Sequence[tuple[str, str]]
    went_out: Sequence[tuple[str, str]]
    notes: Sequence[str]


def _changes(page: TurnPage) -> ShownChanges:
    if page.before is None:
        return ShownChanges((), (), ())
    came_in, went_out, notes = visibility_changes(page.before.view, page.view)
    rows = [
        [(f"{each.entity_id} ({each.kind.replace('_', ' ')})", why) for each, why in found] for found in (came_in, went_out)
    ]
    return ShownChanges(rows[0], rows[1], notes)
