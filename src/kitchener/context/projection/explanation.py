"""Explains why an item was shown or suppressed, as values that a command can print.

An explanation needs the state before the projection and the projection itself. Both are recomputed by folding the ledger up
to the turn, so nothing extra is recorded.
"""

from collections.abc import Iterator, Mapping
from typing import Final, Literal, NamedTuple

from kitchener.context.fold.context_events import SourceEvent
from kitchener.context.fold.items import OF_MESSAGE, TIER_TURN, Item, Reasons
from kitchener.context.fold.lifecycle import IntentRecord, InvalidEvent
from kitchener.context.fold.state import ContextState
from kitchener.context.intents.active import ancestors
from kitchener.context.projection.packer import Form, PlacedItem
from kitchener.context.projection.projection import NOT_ADMITTED, Projection
from kitchener.context.projection.rendering import is_before_history
from kitchener.records.entries import IntentCloser, SuppressReason
from kitchener.records.ref import Ref

Place = Literal["", "system", "history", "turn"]
"""Where an item is in a prompt in chat layout: in the system message, among the chat messages, or with the last message."""
Verdict = Literal["visible", "suppressed", "unreachable", "not_live", "invalid", "unknown"]


class Explanation(NamedTuple):
    """Why one item was shown or not."""

    entity_id: str
    verdict: Verdict
    text: str
    """The explanation for a reader. Contains ids, never what a subject said."""
    form: Form = "NONE"
    reasons: Reasons = ()
    """Why it is eligible; empty: it is not eligible."""
    tokens: int = 0
    """Tokens of the full form."""
    suppressed_by: SuppressReason | None = None
    """Why it is suppressed; None: it is not."""
    short_by: int = 0
    """Tokens that were missing to show it in full; 0: tokens were not the cause."""
    since: Ref | None = None
    """The entry that decided; None: there is none."""
    evidence: tuple[Ref, ...] = ()
    """The entries that prove the result of a work order, as its end names them."""
    place: Place = ""
    """Where it is in the prompt; "": nowhere, or in the one text of a prompt in block layout."""

    @property
    def is_eligible(self) -> bool:
        """Whether it was eligible or recalled, shown or not."""
        return self.verdict in ("visible", "suppressed")


def explain(name: str, state: ContextState, projection: Projection) -> Explanation:
    """Explains why an entity is or is not visible in a projection.

    Args:
        name: the entity's id, or the id of one of its entries
        state: the session's state before the projection
        projection: made from that state
    """
    placed = find_placed(projection, name)
    event = state.find_entry(name) if placed is None else None
    if event is not None:
        if event.ref in state.invalid:
            return _of_invalid(state.invalid[event.ref])
        name = event.entity_id
        placed = find_placed(projection, name)
    message = find_placed(projection, f"{name}{OF_MESSAGE}")
    if placed is None and message is not None and name not in state.turns:  # only the message of a recalled turn was offered
        return _of_placed(message, projection)
    found = _of_placed(placed, projection) if placed is not None else _of_others(name, state, projection)
    if message is not None:
        told = "visible" if message.form == "FULL" else "suppressed"
        found = found._replace(text=f"{found.text}; its message, {message.item.entity_id}, is {told}")
    elif placed is None and name in state.turns:
        found = _left_out(found)
    return _with_evidence(found, state)


def explain_all(state: ContextState, projection: Projection) -> Iterator[Explanation]:
    """Explains all items in one pass: visible, suppressed, not eligible, and invalid events.

    Visible and suppressed items come in the order of the projection, the others (intents, work orders, turns) in the order of
    the ledger.
    """
    taken: set[str] = set()
    for placed in (*projection.visible, *projection.suppressed()):
        taken.add(placed.item.entity_id)
        yield _with_evidence(_of_placed(placed, projection), state)
    for name in (*state.intents, *state.work_orders, *state.turns):
        if name not in taken:
            found = _of_others(name, state, projection)
            is_left_out = name in state.turns and f"{name}{OF_MESSAGE}" not in taken
            yield _with_evidence(_left_out(found) if is_left_out else found, state)
    for invalid in state.invalid.values():
        yield _of_invalid(invalid)


def _left_out(found: Explanation) -> Explanation:
    """What is told of a turn that is neither eligible nor on record as recalled."""
    return found._replace(text=f"{found.text}; it was not recalled, or matches the message too little to be shown")


def _with_evidence(found: Explanation, state: ContextState) -> Explanation:
    work = state.work_orders.get(found.entity_id)
    if work is None or not work.evidence:
        return found
    names = ", ".join([f"{ref.ledger_id} {ref.entry_id}" for ref in work.evidence])
    return found._replace(text=f"{found.text}; evidence: {names}", evidence=work.evidence)


def _of_invalid(invalid: InvalidEvent) -> Explanation:
    event = invalid.event
    text = f"{event.kind} in {event.ref.entry_id} changed nothing: {invalid.problem}"
    return Explanation(event.entity_id, "invalid", text, since=event.ref)


def find_placed(projection: Projection, name: str) -> PlacedItem | None:
    """An eligible or recalled item, by its id or the id of the entry that opened it; None: there is no such item."""
    for each in (*projection.head, *projection.placed, *projection.suppressed()):
        if name in (each.item.entity_id, each.item.ref.entry_id):
            return each
    return None


def place_in_prompt(placed: PlacedItem, projection: Projection) -> Place:
    """Where an item is in a prompt in chat layout; "": nowhere, or the prompt has block layout."""
    if projection.history is None or not placed.text:
        return ""
    if any(each.item.ref == placed.item.ref for each in projection.history):
        return "history"
    return "system" if is_before_history(placed, projection) else "turn"


_PLACES: Final[Mapping[Place, str]] = {
    "": "",
    "system": " in the system message",
    "history": " in the history",
    "turn": " beside the message",
}


def _of_placed(placed: PlacedItem, projection: Projection) -> Explanation:
    item, budget = placed.item, f"the budget of {projection.token_budget} tokens"
    facts = (item.reasons, item.tokens)
    if placed.form == "FULL":
        shape = " in its shortest form, as what must be shown takes more than the budget" if placed.is_compact else ""
        shape = f"{shape} as an excerpt" if item.whole else shape
        place = place_in_prompt(placed, projection)
        text = f"{item.entity_id} is visible{_PLACES[place]}{shape}, {placed.tokens} tokens: {', '.join(item.reasons)}"
        return Explanation(item.entity_id, "visible", text, "FULL", *facts, since=item.proof, place=place)
    shown = "shown as a stub" if placed.form == "STUB" else "not shown"
    if item.entity_id == projection.resumed_id:
        why = "the turn continues it, and the model is given its calls and their results"
    elif placed.reason == "DEFERRED":
        why = "it is deferred, and deferred items are shown as stubs only"
    elif placed.reason == "UNSUPPORTED":
        why = "the model of this turn takes no content of its type"
    elif placed.reason == "ERASED":
        why = "its text was erased with its subject"
    elif placed.reason == "BUDGET_EVICTION":
        why = f"it takes {item.tokens} tokens, {placed.short_by} more than were left of {budget} when it was considered"
    elif item.tier < TIER_TURN:
        why = "newer failures are shown, and it is counted with the other older ones"
    elif projection.history is not None:
        why = "it is older than the chat messages shown, and does not match the message well enough"
    elif placed.short_by:
        why = f"others ranked before it and used up {budget}; it takes {item.tokens} tokens and is {placed.short_by} short"
    else:
        why = f"others ranked before it; its {item.tokens} tokens would still fit {budget}"
    text = f"{item.entity_id} is suppressed ({placed.reason}), {shown}: {why}"
    return Explanation(item.entity_id, "suppressed", text, placed.form, *facts, placed.reason, placed.short_by, item.proof)


def _of_others(name: str, state: ContextState, projection: Projection) -> Explanation:
    """Explains an entity that is not eligible: it is not live, or not connected to the active intent."""
    if name in state.intents:
        record = state.intents[name]
        found = (
            _unreachable(name, name, state, projection, record.declared.ref)
            if record.is_live
            else _dead(name, f"{record.status} by", record.last, record.closed_by)
        )
        owner = record.facts.session_id
        if owner is None or owner == state.session_id:
            return found
        # This session never showed the id, so the text names the session of the intent.
        return found._replace(text=f"{name} ({record.facts.scope}, of {owner}){found.text.removeprefix(name)}")
    if name in state.work_orders:
        work = state.work_orders[name]
        if not work.is_live:
            return _dead(name, f"{work.status} by", work.last)
        return _hanging(name, work.facts.intent_id, state, projection, work.opened.ref)
    for event in (each for brought in state.parts.values() for each in brought):
        if event.entity_id == name:
            why = "its turn belongs to another intent, or `recent_parts` newer images and files were considered"
            text = f"{name} is suppressed ({NOT_ADMITTED}), not shown: {why}"
            return Explanation(name, "suppressed", text, suppressed_by=NOT_ADMITTED, since=event.ref)
    turn: Item | None = state.turns.get(name)
    if turn is not None:
        return _hanging(name, turn.intent_id, state, projection, turn.ref)
    return Explanation(name, "unknown", f"{name} is no intent, work order, turn or entry of this session's context")


_CLOSERS: Final[Mapping[IntentCloser | None, str]] = {
    "classification": "the classification of the user's message",
    "user": "a call of the user or the program",
    "tool": "a tool",
    "reply": "the model's reply",
    None: "somebody whom the record does not name",
}


def closer_words(closer: IntentCloser | None) -> str:
    """Who closed an intent, in words."""
    return _CLOSERS[closer]


def _dead(name: str, how: str, last: SourceEvent, by: IntentCloser | None = None) -> Explanation:
    who = f"; closed by {closer_words(by)}" if by is not None else ""
    text = f"{name} is not live: {how} {last.kind} in {last.ref.entry_id} at {last.timestamp}{who}"
    return Explanation(name, "not_live", text, since=last.ref)


def _hanging(name: str, intent_id: str | None, state: ContextState, projection: Projection, own: Ref) -> Explanation:
    if intent_id is None:
        return Explanation(name, "unreachable", f"{name} is unreachable: it belongs to no intent", since=own)
    record: IntentRecord | None = state.intents.get(intent_id)
    if record is None:
        text = f"{name} is unreachable: its intent {intent_id} was never declared"
        return Explanation(name, "unreachable", text, since=own)
    if not record.is_live:
        return _dead(name, f"its intent {intent_id} was {record.status} by", record.last, record.closed_by)
    return _unreachable(name, intent_id, state, projection, own)


def _unreachable(name: str, intent_id: str, state: ContextState, projection: Projection, own: Ref) -> Explanation:
    active = projection.intent_id
    if active is None:
        return Explanation(name, "unreachable", f"{name} is unreachable: no intent was active", since=own)
    of_it = f"it belongs to {intent_id}, which" if name != intent_id else "it"
    for above in ancestors(state.intents, active):
        if above.intent_id == intent_id:
            break
        if above.status == "deferred":
            text = f"{name} is unreachable from {active}: {of_it} is an ancestor of {above.intent_id}, which is deferred"
            return Explanation(name, "unreachable", text, since=above.last.ref)
    text = f"{name} is unreachable from {active}: {of_it} is neither the active intent nor an ancestor of it"
    return Explanation(name, "unreachable", text, since=own)


class VisibilityChange(NamedTuple):
    """One item that is visible in only one of two projections."""

    entity_id: str
    kind: str
    why: str
    """Why the other projection does not show it, for a reader."""


class ProjectionDiff(NamedTuple):
    """The differences between two projections."""

    came_in: tuple[VisibilityChange, ...]
    """Items visible only in the second projection, in its order."""
    went_out: tuple[VisibilityChange, ...]
    """Items visible only in the first projection, in its order."""
    notes: tuple[str, ...]
    """Other differences: intent, budget, ruleset, mode."""


def diff_projections(before: Projection, after: Projection, *, state: ContextState | None = None) -> ProjectionDiff:
    """The items that two projections do not share, with reasons.

    Args:
        before: the earlier projection
        after: the later projection
        state: the session's state before the later projection, to explain why an item is no longer eligible; None: no reason
    """
    shown_before = {each.item.ref for each in before.visible}
    shown_after = {each.item.ref for each in after.visible}
    known_before = {each.item.ref: each for each in before.suppressed()}
    known_after = {each.item.ref: each for each in after.suppressed()}
    came_in = [
        VisibilityChange(each.item.entity_id, each.item.kind, _why_in(known_before.get(each.item.ref)))
        for each in after.visible
        if each.item.ref not in shown_before
    ]
    went_out = [
        VisibilityChange(each.item.entity_id, each.item.kind, _why_out(each.item, known_after.get(each.item.ref), after, state))
        for each in before.visible
        if each.item.ref not in shown_after
    ]
    notes = [
        f"{what}: {old} before, {new} after"
        for what, old, new in (
            ("intent", before.intent_id, after.intent_id),
            ("token budget", before.token_budget, after.token_budget),
            ("ruleset", before.ruleset_hash, after.ruleset_hash),
            ("mode", before.mode, after.mode),
        )
        if old != new
    ]
    return ProjectionDiff(tuple(came_in), tuple(went_out), tuple(notes))


def _why_in(was: PlacedItem | None) -> str:
    return "was not eligible before" if was is None else f"was suppressed before ({was.reason})"


def _why_out(item: Item, placed: PlacedItem | None, after: Projection, state: ContextState | None) -> str:
    if placed is not None:
        return _of_placed(placed, after).text
    if state is not None and item.kind in ("intent", "work_order", "turn"):
        return _of_others(item.entity_id, state, after).text
    return f"{item.entity_id} is not eligible any more" if item.kind != "evidence" else f"{item.entity_id} was not recalled"
