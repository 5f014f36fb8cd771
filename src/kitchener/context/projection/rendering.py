"""Turns a projection into the text that a model reads: the same projection gives the same bytes.

The most stable parts come first, so that a provider's prompt cache keeps its prefix: rules and goals, learned lines, turns
from old to new, current work orders, and omitted items. This text does not contain the turn's own message, which follows it.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from kitchener.canonical import digest
from kitchener.context.fold.chat_messages import spoken
from kitchener.context.fold.items import LINE, SEPARATOR, Item, ItemKind
from kitchener.context.projection.days import Day, day_of, heading, heading_of_today
from kitchener.context.projection.packer import PlacedItem
from kitchener.context.projection.projection import Projection
from kitchener.records.ref import Ref
from kitchener.records.spoken import as_chat
from kitchener.records.tokens import Estimator


class Rendering(NamedTuple):
    """A projection as text."""

    text: str
    """The text for the model; "": nothing is shown."""
    text_hash: str
    """`sha256:` of the text."""
    refs: tuple[Ref, ...]
    """The entries of the items in the text, in the order of the text."""
    stable_prefix_tokens: int
    stable_prefix: str
    """The start of the text that does not change from turn to turn: rules, goals and learned lines."""
    stable_text: str = ""
    """The stable part, which stands before the history; "": there is none, or it is part of `text`."""
    history: tuple[str, ...] | None = None
    """Chat messages of the user and the agent in turn, oldest first; None: the turns are part of `text`."""


def render(projection: Projection, estimate: Estimator, *, elsewhere: Collection[ItemKind] = ()) -> Rendering:
    """The text of a projection.

    Args:
        projection: the decision
        estimate: counts the tokens of a text
        elsewhere: kinds of items that another part of the prompt shows, such as rules among the instructions; left out here
    """
    if projection.history is not None:
        return _as_chat(projection, estimate, elsewhere)
    stable: list[tuple[str, Item]] = []
    moving: list[tuple[str, Item]] = []
    for each in projection.head:
        text = each.text
        if text and each.item.kind not in elsewhere:
            (stable if _is_stable(each) else moving).append((text, each.item))
    if projection.counted is not None and projection.counted.kind not in elsewhere:
        moving.insert(0, (projection.counted.text, projection.counted))
    shown = [
        (each.item.text, each.item) for each in projection.placed if each.form == "FULL" and each.item.kind not in elsewhere
    ]
    left_out = [(each.text, each.item) for each in projection.placed if each.form == "STUB" and each.item.kind not in elsewhere]
    prefix = SEPARATOR.join([text for text, _ in stable])
    if projection.today:
        shown, told = _by_day(shown, projection)
        blocks = [prefix, told, *[text for text, _ in (*moving, *left_out)]]
        text = SEPARATOR.join([each for each in blocks if each])
    else:
        text = SEPARATOR.join([text for text, _ in (*stable, *shown, *moving, *left_out)])
    return _rendering(text, [*stable, *shown, *moving, *left_out], prefix, estimate)


def _as_chat(projection: Projection, estimate: Estimator, elsewhere: Collection[ItemKind]) -> Rendering:
    """A projection in chat layout: the stable items, then the history as chat messages, then this turn's items."""
    history = projection.history or ()
    said = {each.item.ref for each in history}
    head = [each for each in projection.head if each.text]
    stable = [each for each in head if is_before_history(each, projection)]
    moving = [(each.text, each.item) for each in head if not is_before_history(each, projection)]
    if projection.counted is not None:
        moving.insert(0, (projection.counted.text, projection.counted))
    others = [each for each in projection.placed if each.item.ref not in said and each.text]
    shown = [(each.text, each.item) for each in others if each.form == "FULL"]
    told = ""
    if projection.today:
        shown, told = _by_day(shown, projection)
    after = [*moving, *[(each.text, each.item) for each in others if each.form == "STUB"]]
    texts = [told] if projection.today else [text for text, _ in shown]
    kept = [(text, item) for text, item in after if item.kind not in elsewhere]
    text = SEPARATOR.join([each for each in (*[text for text, _ in kept], *texts) if each])
    before = [(each.text, each.item) for each in stable if each.item.kind not in elsewhere]
    stable_text = SEPARATOR.join([text for text, _ in before])
    prefix = SEPARATOR.join([each.text for each in stable if each.item.kind != "rule"])
    messages = tuple(as_chat(_dated(history)))
    parts = [*before, *[(each.item.text, each.item) for each in history], *kept, *shown]
    return _rendering(text, parts, prefix, estimate)._replace(stable_text=stable_text, history=messages)


def _rendering(text: str, parts: Iterable[tuple[str, Item]], prefix: str, estimate: Estimator) -> Rendering:
    return Rendering(
        text=text,
        text_hash=digest(text.encode()),
        refs=tuple([item.ref for _, item in parts]),
        stable_prefix_tokens=estimate(prefix) if prefix else 0,
        stable_prefix=prefix,
    )


def _dated(history: Iterable[PlacedItem]) -> Iterator[tuple[bool, str]]:
    """The messages of the history. The first message of each day begins with the date."""
    last = ""
    for each in history:
        day = each.item.timestamp[:10]
        for is_reply, text in spoken(each.item):
            if day != last and not is_reply:
                text, last = f"{heading(day)}{LINE}{text}", day
            yield is_reply, text


def _by_day(shown: Sequence[tuple[str, Item]], projection: Projection) -> tuple[list[tuple[str, Item]], str]:
    """Turns in the order in which they are shown, and their text under dates: session by session, the running one last."""
    first: dict[str | None, int] = {}
    for _, item in shown:
        first.setdefault(item.session_id, len(first))
    first[projection.session_id] = len(shown)
    ordered = sorted(shown, key=lambda each: first[each[1].session_id])
    own: Day = (projection.session_id, projection.today)
    lines, last = list[str](), None
    for text, item in ordered:
        day = day_of(item)
        if day != last:
            lines.append(heading_of_today(projection.today) if day == own else heading(day[1]))
            last = day
        lines.append(text)
    if last != own:
        lines.append(heading_of_today(projection.today))
    return ordered, LINE.join(lines)


_STABLE: Final = ("rule", "intent", "bias")
"""Kinds of items that seldom change."""


def _is_stable(placed: PlacedItem) -> bool:
    return placed.form == "FULL" and placed.item.kind in _STABLE


def is_before_history(placed: PlacedItem, projection: Projection) -> bool:
    """Whether an item stands before the chat messages: it seldom changes, and is no goal that changes with the intent."""
    return _is_stable(placed) and not (projection.goal_moves and placed.item.entity_id == projection.intent_id)
