"""Turns records into items: pieces of text for a model, each with its size, its source and a short form.

Only this module creates items, so that the same facts always give the same text. `projection.py` decides which items are
shown; `rendering.py` joins them into one text.
"""

from collections.abc import Callable, Iterable
from typing import Final, Literal, NamedTuple

from kitchener.canonical import digest
from kitchener.context.fold.events import ERASED, Answered, Declared, EventKey, Opened, SourceEvent
from kitchener.errors import ConfigError
from kitchener.records.ref import Ref
from kitchener.records.spoken import as_said, turn_text

ItemKind = Literal["rule", "intent", "work_order", "failed_work_orders", "bias", "turn", "evidence"]
Reason = Literal["DEFINES_INTENT", "OPEN_WO", "FAILED_WO", "GLOBAL_INVARIANT", "REACHABLE_FROM_INTENT", "HO3_BIAS", "RECALLED"]
Reasons = tuple[Reason, ...]
Estimator = Callable[[str], int]
"""A text to its tokens. Must not give more for two texts apart than it may give for them together, less one each."""

IN_INTENT: Final[Reasons] = ("REACHABLE_FROM_INTENT",)
RECALLED: Final[Reasons] = ("RECALLED",)
SEPARATOR: Final = "\n\n"
"""Between items in the shown text; counted with each of them."""
STUB_CHARS: Final = 80
"""Of an item's text, kept in its stub."""

TIER_HEADER, TIER_FAILED, TIER_OPEN, TIER_BIAS, TIER_DEFERRED, TIER_TURN = range(1, 7)


class Item(NamedTuple):
    """One piece of text that may be shown."""

    entity_id: str
    """The intent, work order, turn, rule or artifact it stands for."""
    kind: ItemKind
    """What that is."""
    ref: Ref
    """The entry that opened it; names the item in every record."""
    place: EventKey
    """Its place among items of one tier: that entry's timestamp ("" where it has none), id and ledger."""
    text: str
    """The full form."""
    stub: str
    """The short form."""
    tokens: int
    """Of the full form, with its separator."""
    stub_tokens: int
    """Of the short form, with its separator."""
    tier: int
    """In which it is packed, 1 to 6."""
    reasons: Reasons
    """Why it is eligible."""
    proof: Ref
    """The entry that last decided about it."""
    intent_id: str | None = None
    """The intent it is attached to."""
    group: str | None = None
    """Items of one group are shown together or not at all, e.g. a tool call and its result."""
    session_id: str | None = None
    """The session it comes from; None where it is not known or has none."""
    is_erased: bool = False
    """What it said was erased: it is never more than a stub."""

    @property
    def timestamp(self) -> str:
        """Of the entry that opened it; "" where it has none."""
        return self.place[0]


def estimator(name: str) -> Estimator:
    """The built-in way of estimating tokens that has this name.

    Raises:
        ConfigError: there is none; a plugged-in tokenizer has to be passed beside its name
    """
    found = _ESTIMATORS.get(name)
    if found is None:
        expected = f"expected one of {', '.join(_ESTIMATORS)}, or a tokenizer passed along"
        raise ConfigError("ruleset", "token_estimator", repr(name), expected)
    return found


def _third_of_bytes(text: str) -> int:
    return -(-(len(text) if text.isascii() else len(text.encode())) // 3)


def _quarter_of_characters(text: str) -> int:
    return -(-len(text) // 4)


_ESTIMATORS: Final[dict[str, Estimator]] = {"utf8/3": _third_of_bytes, "chars/4": _quarter_of_characters}


def turn_item(event: SourceEvent, facts: Answered, message: str, intent_id: str | None, estimate: Estimator) -> Item:
    """A completed turn."""
    is_erased = message is ERASED or facts.response is ERASED  # by identity: somebody may say the very word
    if is_erased:
        text = stub = f"[{event.entity_id}] erased"
    else:
        text = turn_text(message, facts.response)
        stub = f"[{event.entity_id}] user: {shortened(message)}"
    return Item(
        event.entity_id,
        "turn",
        event.ref,
        event.key,
        text,
        stub,
        estimate(text + SEPARATOR),
        estimate(stub + SEPARATOR),
        TIER_TURN,
        IN_INTENT,
        event.ref,
        intent_id,
        None,
        facts.session_id,
        is_erased,
    )


def intent_item(
    event: SourceEvent, facts: Declared, last: Ref, estimate: Estimator, *, is_active: bool, is_deferred: bool = False
) -> Item:
    """The header of the active intent, or of one above it."""
    title = "Goal" if is_active else "Wider goal"
    text = f"{title}: {as_said(facts.objective)}"
    if facts.targets:
        text += f"\nTargets: {as_said(', '.join(facts.targets))}"
    stub = f"{title}{' (put off)' if is_deferred else ''}: {shortened(facts.objective)}"
    return Item(
        event.entity_id,
        "intent",
        event.ref,
        event.key,
        text,
        stub,
        estimate(text + SEPARATOR),
        estimate(stub + SEPARATOR),
        TIER_DEFERRED if is_deferred else TIER_HEADER,
        ("DEFINES_INTENT",),
        last,
        event.entity_id,
        is_erased=facts.objective is ERASED,
    )


_WO_FORMS: Final[dict[str, tuple[str, int, Reasons]]] = {
    "open": ("open", TIER_OPEN, ("OPEN_WO", "REACHABLE_FROM_INTENT")),
    "deferred": ("waiting", TIER_DEFERRED, ("OPEN_WO", "REACHABLE_FROM_INTENT")),
    "failed": ("failed", TIER_FAILED, ("FAILED_WO", "REACHABLE_FROM_INTENT")),
}


def work_order_item(event: SourceEvent, facts: Opened, status: str, detail: str, last: Ref, estimate: Estimator) -> Item:
    """A live work order: open, waiting or failed."""
    word, tier, reasons = _WO_FORMS[status]
    head = f"Work order {event.entity_id}{f' ({facts.wo_type})' if facts.wo_type else ''} {word}"
    stub = f"[{head}{f': {shortened(detail)}' if detail else ''}]"
    lines = [f"{head}: {as_said(detail)}" if detail else head]
    if facts.targets:
        lines.append(f"Targets: {as_said(', '.join(facts.targets))}")
    if facts.acceptance:
        lines.append(f"Accepted when: {as_said('; '.join(facts.acceptance))}")
    text = "\n".join(lines)
    return Item(
        event.entity_id,
        "work_order",
        event.ref,
        event.key,
        text,
        stub,
        estimate(text + SEPARATOR),
        estimate(stub + SEPARATOR),
        tier,
        reasons,
        last,
        facts.intent_id,
    )


def rule_items(rules: Iterable[str], estimate: Estimator) -> tuple[Item, ...]:
    """The standing rules, numbered from 1. A rule has no shorter form: half a rule is another rule."""
    return tuple([_plain(f"INV-{n}", "rule", _rule_ref(n, rule), "", rule, estimate) for n, rule in enumerate(rules, 1)])


def _rule_ref(number: int, rule: str) -> Ref:
    return Ref("RULESET", f"INV-{number}", digest(rule.encode()))


def bias_item(artifact_id: str, ref: Ref, timestamp: str, line: str, estimate: Estimator) -> Item:
    """One line of long-term memory, word for word.

    Args:
        artifact_id: what consolidation called it
        ref: its entry in the ledger of overlays
        timestamp: of that entry
        line: what is shown
        estimate: how tokens are counted
    """
    return _plain(artifact_id, "bias", ref, timestamp, line, estimate)


def _plain(entity_id: str, kind: Literal["rule", "bias"], ref: Ref, timestamp: str, text: str, estimate: Estimator) -> Item:
    tokens = estimate(text + SEPARATOR)
    tier, reason = _PLAIN_FORMS[kind]
    return Item(entity_id, kind, ref, _place(timestamp, ref), text, text, tokens, tokens, tier, (reason,), ref)


def _place(timestamp: str, ref: Ref) -> EventKey:
    return (timestamp, ref.entry_id, ref.ledger_id)


_PLAIN_FORMS: Final[dict[str, tuple[int, Reason]]] = {
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
) -> Item:
    """Something recalled from elsewhere: shown if it ranks well, never eligible.

    Args:
        entity_id: what it is, e.g. a turn's id
        ref: its entry
        timestamp: of that entry
        text: what is shown
        estimate: how tokens are counted
        group: shared by items that must not be split, such as a tool call and its result
        session_id: where it comes from
    """
    stub = f"[{entity_id}] {shortened(text)}"
    size, stub_size = estimate(text + SEPARATOR), estimate(stub + SEPARATOR)
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
    """A turn's item as evidence that is recalled from another intent."""
    return item._replace(kind="evidence", reasons=RECALLED)


def counted_item(items: list[Item], estimate: Estimator) -> Item:
    """One stub for all the failed work orders that are not shown themselves; the newest stands for them."""
    newest = items[-1]
    text = f"[{len(items)} earlier work order{'s' if len(items) > 1 else ''} failed, the last of them {newest.entity_id}]"
    tokens = estimate(text + SEPARATOR)
    return newest._replace(kind="failed_work_orders", text=text, stub=text, tokens=tokens, stub_tokens=tokens)


def shortened(text: str) -> str:
    """The beginning of a text, on one line."""
    # Cut before splitting as well: the text may be a megabyte.
    line = " ".join(text[: STUB_CHARS * 4].split())
    return line if len(line) <= STUB_CHARS and len(text) <= STUB_CHARS * 4 else f"{line[: STUB_CHARS - 1]}…"
