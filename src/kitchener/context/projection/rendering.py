"""Turns a projection into the text that a model reads: the same projection gives the same bytes.

The most stable parts come first, so that a provider's prompt cache keeps its prefix: rules and goals, learned lines, turns
from old to new, current work orders, and omitted items. This text does not contain the turn's own message, which follows it.
"""

from collections.abc import Collection
from typing import NamedTuple

from kitchener.canonical import digest
from kitchener.context.fold.items import SEPARATOR, Estimator, Item, ItemKind
from kitchener.context.projection.packing import Placed
from kitchener.context.projection.projection import Projection
from kitchener.records.ref import Ref


class Rendering(NamedTuple):
    """A projection as text."""

    text: str
    """For the model; "" where nothing is shown."""
    text_hash: str
    """`sha256:` of it."""
    refs: tuple[Ref, ...]
    """The entries whose items stand in it, in the order of the text."""
    stable_prefix_tokens: int
    """Of the part that no turn changes by itself: rules, goals, memory."""
    stable_prefix: str
    """That part."""


def render(projection: Projection, estimate: Estimator, *, elsewhere: Collection[ItemKind] = ()) -> Rendering:
    """The text of a projection.

    Args:
        projection: what to show
        estimate: how tokens are counted
        elsewhere: kinds that the prompt shows in another place, such as rules among the instructions; left out here
    """
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
    parts = [*stable, *shown, *moving, *left_out]
    text = SEPARATOR.join([text for text, _ in parts])
    return Rendering(
        text,
        digest(text.encode()),
        tuple([item.ref for _, item in parts]),
        estimate(prefix) if prefix else 0,
        prefix,
    )


def _is_stable(placed: Placed) -> bool:
    return placed.form == "FULL" and placed.item.kind in ("rule", "intent", "bias")
