"""Turns records into items: pieces of text for a model, each with its size, its source and a short form.

Only this module creates items, so that the same facts always give the same text. `projection.py` decides which items are
shown; `rendering.py` joins them into one text.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final, Literal, NamedTuple

from kitchener.canonical import digest
from kitchener.context.fold.context_events import Answered, Asked, Brought, Declared, EventKey, Opened, Said, SourceEvent
from kitchener.errors import ConfigError
from kitchener.records.entries import ERASED, EligibilityReason
from kitchener.records.ref import Ref
from kitchener.records.spoken import (
    ASSISTANT_LABEL,
    RECALLED_LABEL,
    as_said,
    imported_text,
    label_of,
    message_text,
    reply_text,
    turn_text,
)
from kitchener.records.tokens import ESTIMATORS, Estimator

ItemKind = Literal["rule", "intent", "work_order", "failed_work_orders", "bias", "tool_result", "turn", "evidence", "part"]
Reasons = tuple[EligibilityReason, ...]

IN_INTENT: Final[Reasons] = ("REACHABLE_FROM_INTENT",)
RECALLED: Final[Reasons] = ("RECALLED",)
RECENT: Final[Reasons] = ("RECENT",)
SEPARATOR: Final = "\n\n"
"""Between items in the shown text; counted with each item."""
LINE: Final = "\n"
"""Between messages and replies that are items of their own; counted with each."""
STUB_CHARS: Final = 80
"""Characters of an item's text in its stub."""
place_of: Final = attrgetter("place")
"""The sort key of items within a tier."""

TIER_HEADER, TIER_FAILED, TIER_OPEN, TIER_BIAS, TIER_DEFERRED, TIER_RESULT, TIER_RECENT, TIER_TURN, TIER_PART = range(1, 10)


class Item(NamedTuple):
    """One piece of text that may be shown."""

    entity_id: str
    """Id of the intent, work order, turn, rule or artifact."""
    kind: ItemKind
    ref: Ref
    """The entry that opened it; every record names the item by it."""
    place: EventKey
    """Sort key among items of one tier: the entry's timestamp ("": it has none), id and ledger."""
    text: str
    """The full form."""
    stub: str
    """The short form."""
    tokens: int
    """Of the full form, with its separator."""
    stub_tokens: int
    """Of the short form, with its separator."""
    tier: int
    """Tier in which the item is packed, 1 to 9."""
    reasons: Reasons
    """Why it is eligible."""
    proof: Ref
    """The entry that last changed its state."""
    intent_id: str | None = None
    """The intent it is attached to; None: no intent."""
    group: str | None = None
    """Items of one group are shown together or not at all, e.g. a tool call and its result."""
    session_id: str | None = None
    """The session it comes from; None: not known, or no session."""
    is_erased: bool = False
    """Whether its text was erased; it is then shown as a stub at most."""
    whole: str = ""
    """The full text if `text` is an excerpt; "": `text` is the full text."""
    is_reply: bool = False
    """Whether it is a reply of the agent, and not what was said to it."""
    untrusted_source: str | None = None
    """The untrusted source of a tool's result; None: the source is trusted, or the item is no result."""

    @property
    def timestamp(self) -> str:
        """Timestamp of the entry that opened it; "": it has none."""
        return self.place[0]


def estimator(name: str) -> Estimator:
    """The built-in token estimator of this name.

    Raises:
        ConfigError: no estimator has this name; pass a plugged-in tokenizer together with its name
    """
    found = ESTIMATORS.get(name)
    if found is None:
        expected = f"expected one of {', '.join(ESTIMATORS)}, or a tokenizer passed along"
        raise ConfigError("ruleset", "token_estimator", repr(name), expected)
    return found


def turn_items(event: SourceEvent, facts: Answered, asked: SourceEvent | None, estimate: Estimator) -> tuple[Item, Item] | None:
    """The message and the reply of a completed turn, as two items; None: one of them was erased.

    The reply has the turn's id and entry. The message has the entry that began the turn.
    """
    if asked is None or not isinstance(asked.facts, Asked):
        return None
    message, response = asked.facts.message, facts.response
    if message is None or message is ERASED or response is ERASED:
        return None
    return (
        _part_item(asked, f"{event.entity_id}{OF_MESSAGE}", message_text(message, asked.facts.speaker), facts, estimate),
        _part_item(event, event.entity_id, reply_text(response), facts, estimate, is_reply=True),
    )


def said_item(event: SourceEvent, facts: Said, estimate: Estimator) -> Item:
    """A message of an imported conversation, at the time when it was said."""
    is_erased = facts.text is ERASED
    text = imported_text(facts.text, facts.speaker, is_reply=facts.is_reply)
    dated = event._replace(timestamp=facts.said_at)
    if not is_erased:
        return _part_item(dated, event.entity_id, text, facts, estimate, is_reply=facts.is_reply)
    erased = f"[{event.entity_id}] erased"
    return _part_item(dated, event.entity_id, erased, facts, estimate)._replace(stub=erased, is_erased=True)


def _part_item(
    event: SourceEvent, name: str, text: str, facts: Answered | Said, estimate: Estimator, *, is_reply: bool = False
) -> Item:
    stub = f"[{name}] {first_line(text)}"
    return Item(
        name,
        "turn",
        event.ref,
        event.key,
        text,
        stub,
        estimate(text + LINE),
        estimate(stub + SEPARATOR),
        TIER_TURN,
        IN_INTENT,
        event.ref,
        facts.intent_id,
        None,
        facts.session_id,
        is_reply=is_reply,
    )


OF_MESSAGE: Final = ".message"
"""Ends the id of a turn's message. The reply has the turn's own id."""


def turn_of(item: Item) -> str:
    """The id of the turn to which an item belongs."""
    return item.entity_id.removesuffix(OF_MESSAGE)


def count_turns(items: Iterable[Item]) -> int:
    """The number of turns to which items belong."""
    return len({turn_of(item) for item in items})


def newest_from(items: Sequence[Item], turns: int) -> int:
    """The position of the first item of the newest turns, in a list of turns' items from old to new."""
    at = len(items)
    while at and turns > 0:
        turns -= 1
        newest = turn_of(items[at - 1])
        while at and turn_of(items[at - 1]) == newest:
            at -= 1
    return at


def turn_item(event: SourceEvent, facts: Answered, asked: Asked, intent_id: str | None, estimate: Estimator) -> Item:
    """A completed turn."""
    message = asked.message or ""
    is_erased = message is ERASED or facts.response is ERASED  # by identity: a user may write "[erased]"
    if is_erased:
        text = stub = f"[{event.entity_id}] erased"
    else:
        text = turn_text(message, facts.response, asked.speaker)
        stub = f"[{event.entity_id}] {label_of(text)}{first_line(message)}"
    item = _event_item(event, "turn", text, stub, estimate, TIER_TURN, IN_INTENT, event.ref, intent_id)
    return item._replace(session_id=facts.session_id, is_erased=is_erased)


def part_item(event: SourceEvent, facts: Brought, intent_id: str | None, estimate: Estimator) -> Item:
    """An image or a file of an earlier turn. Its text is a placeholder: the request contains the content separately."""
    part, name = facts.part, as_said(facts.part.described)
    text = f"[{name}: attached to this message]"
    item = _event_item(event, "part", text, as_said(part.stub), estimate, TIER_PART, IN_INTENT, event.ref, intent_id)
    return item._replace(tokens=item.tokens + part.tokens, is_erased=part.name is ERASED)


def intent_item(
    event: SourceEvent,
    facts: Declared,
    last: Ref,
    estimate: Estimator,
    *,
    is_active: bool,
    is_deferred: bool = False,
    is_plain: bool = True,
) -> Item:
    """The header of the active intent, or of an intent above it. Before version 10 of the policy, `is_plain` is false."""
    title = "Goal" if is_active else "Wider goal"
    mark = (" (deferred)" if is_plain else " (put off)") if is_deferred else ""
    text = f"{title}: {as_said(facts.objective)}"
    if facts.targets:
        text += f"\nTargets: {as_said(', '.join(facts.targets))}"
    stub = f"{title}{mark}: {first_line(facts.objective)}"
    tier = TIER_DEFERRED if is_deferred else TIER_HEADER
    item = _event_item(event, "intent", text, stub, estimate, tier, ("DEFINES_INTENT",), last, event.entity_id)
    return item._replace(is_erased=True) if facts.objective is ERASED else item


_WO_FORMS: Final[dict[str, tuple[str, int, Reasons]]] = {
    "open": ("open", TIER_OPEN, ("OPEN_WO", "REACHABLE_FROM_INTENT")),
    "deferred": ("waiting", TIER_DEFERRED, ("OPEN_WO", "REACHABLE_FROM_INTENT")),
    "failed": ("failed", TIER_FAILED, ("FAILED_WO", "REACHABLE_FROM_INTENT")),
}


def work_order_item(event: SourceEvent, facts: Opened, status: str, detail: str, last: Ref, estimate: Estimator) -> Item:
    """A work order: open, waiting or failed. One that has ended is never eligible; its item only serves explanations."""
    word, tier, reasons = _WO_FORMS.get(status) or (status, TIER_OPEN, ())
    head = f"Work order {event.entity_id}{f' ({facts.wo_type})' if facts.wo_type else ''} {word}"
    stub = f"[{head}{f': {first_line(detail)}' if detail else ''}]"
    lines = [f"{head}: {as_said(detail)}" if detail else head]
    if facts.targets:
        lines.append(f"Targets: {as_said(', '.join(facts.targets))}")
    if facts.acceptance:
        lines.append(f"Accepted when: {as_said('; '.join(facts.acceptance))}")
    return _event_item(event, "work_order", "\n".join(lines), stub, estimate, tier, reasons, last, facts.intent_id)


def _event_item(  # noqa: PLR0913 - the fields of an item that differ between kinds
    event: SourceEvent,
    kind: ItemKind,
    text: str,
    stub: str,
    estimate: Estimator,
    tier: int,
    reasons: Reasons,
    proof: Ref,
    intent_id: str | None,
) -> Item:
    """The item of the intent, work order, turn or part that an event opened, with its full text and its stub."""
    sizes = estimate(text + SEPARATOR), estimate(stub + SEPARATOR)
    return Item(event.entity_id, kind, event.ref, event.key, text, stub, *sizes, tier, reasons, proof, intent_id)


def rule_items(rules: Iterable[str], estimate: Estimator) -> tuple[Item, ...]:
    """The standing rules, numbered from 1. A rule has no shorter form, because half a rule is a different rule."""
    return tuple([_plain(f"INV-{n}", "rule", rule_ref(n, rule), "", rule, estimate) for n, rule in enumerate(rules, 1)])


def rule_ref(number: int, rule: str) -> Ref:
    """The reference of a standing rule, whose text has no entry in a ledger."""
    return Ref("RULESET", f"INV-{number}", digest(rule.encode()))


def bias_item(artifact_id: str, ref: Ref, timestamp: str, line: str, estimate: Estimator) -> Item:
    """A learned line of long-term memory, unchanged.

    Args:
        artifact_id: the artifact's id
        ref: the artifact's entry in the overlays ledger
        timestamp: that entry's timestamp
        line: the text to show
        estimate: counts the tokens of a text
    """
    return _plain(artifact_id, "bias", ref, timestamp, line, estimate)


def _plain(entity_id: str, kind: Literal["rule", "bias"], ref: Ref, timestamp: str, text: str, estimate: Estimator) -> Item:
    tokens = estimate(text + SEPARATOR)
    tier, reason = _PLAIN_FORMS[kind]
    return Item(entity_id, kind, ref, _place(timestamp, ref), text, text, tokens, tokens, tier, (reason,), ref)


def _place(timestamp: str, ref: Ref) -> EventKey:
    return (timestamp, ref.entry_id, ref.ledger_id)


_PLAIN_FORMS: Final[dict[str, tuple[int, EligibilityReason]]] = {
    "rule": (TIER_HEADER, "GLOBAL_INVARIANT"),
    "bias": (TIER_BIAS, "HO3_BIAS"),
}


def evidence_item(
    entity_id: str,
    ref: Ref,
    timestamp: str,
    text: str,
    estimate: Estimator,
    *,
    group: str | None = None,
    session_id: str | None = None,
    separator: str = SEPARATOR,
) -> Item:
    """An item recalled from outside the intent: shown if it ranks well, never eligible.

    Args:
        entity_id: the item's id, e.g. a turn's
        ref: the item's entry
        timestamp: that entry's timestamp
        text: the text to show
        estimate: counts the tokens of a text
        group: shared by items that are shown together or not at all; None: no group
        session_id: the session it comes from; None: no session
        separator: what follows the text; its tokens count with the item
    """
    stub = f"[{entity_id}] {first_line(text)}"
    size, stub_size = estimate(text + separator), estimate(stub + SEPARATOR)
    return Item(
        entity_id,
        "evidence",
        ref,
        _place(timestamp, ref),
        text,
        stub,
        size,
        stub_size,
        TIER_TURN,
        RECALLED,
        ref,
        None,
        group,
        session_id,
    )


def recalled(item: Item) -> Item:
    """A turn's item as evidence recalled from another intent."""
    return item._replace(kind="evidence", reasons=RECALLED)


def terse(item: Item, estimate: Estimator) -> Item:
    """A recalled item with the shortest label: `AI: ` before a reply."""
    if not item.text.startswith(ASSISTANT_LABEL):
        return item
    text = f"{RECALLED_LABEL}{item.text[len(ASSISTANT_LABEL) :]}"
    return item._replace(text=text, tokens=estimate(text + LINE))


def unspoken(item: Item) -> Item:
    """An item that is never shown, because it has no text."""
    return item._replace(text="", stub="", tokens=0, stub_tokens=0)


def recent(item: Item) -> Item:
    """A turn's item as one of the session's newest turns, which is shown whatever its intent."""
    return item._replace(kind="evidence", reasons=RECENT, tier=TIER_RECENT)


def counted_item(items: list[Item], estimate: Estimator, *, is_plain: bool) -> Item:
    """One stub for all failed work orders that are not shown; it has the id and ref of the newest.

    Args:
        items: the work orders, oldest first
        estimate: counts the tokens of a text
        is_plain: whether only one of several is called the last; false before version 10 of the policy
    """
    newest, count = items[-1], len(items)
    which = ":" if is_plain and count == 1 else ", the last of them"
    text = f"[{count} earlier work order{'s' if count > 1 else ''} failed{which} {newest.entity_id}]"
    tokens = estimate(text + SEPARATOR)
    return newest._replace(kind="failed_work_orders", text=text, stub=text, tokens=tokens, stub_tokens=tokens)


def first_line(text: str) -> str:
    """The beginning of a text, on one line."""
    # Cut before splitting too, because the text may be a megabyte long.
    line = " ".join(text[: STUB_CHARS * 4].split())
    return line if len(line) <= STUB_CHARS and len(text) <= STUB_CHARS * 4 else f"{line[: STUB_CHARS - 1]}…"
