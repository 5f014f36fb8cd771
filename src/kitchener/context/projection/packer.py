"""Fills a token budget with items, in the given order.

An item that does not fit is skipped, so that a smaller one may still fit. The tokens of stubs count. `projection.py` chooses
the items and their order.
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final, Literal, NamedTuple

from kitchener.context.fold.items import TIER_DEFERRED, Item, turn_of
from kitchener.context.projection.days import Days
from kitchener.records.entries import SuppressReason

placed_order: Final = attrgetter("item.place")
"""The sort key of placed turns and evidence: from old to new."""

Form = Literal["FULL", "STUB", "NONE"]


class PlacedItem(NamedTuple):
    """One item and the form in which it is shown."""

    item: Item
    form: Form
    """`FULL` is visible; `STUB` and `NONE` are suppressed."""
    tokens: int
    """Tokens of the shown form; 0 for a stub that another stub counts."""
    reason: SuppressReason | None = None
    """Why it is suppressed; None: it is visible."""
    short_by: int = 0
    """Tokens that were missing when it was packed."""
    is_compact: bool = False
    """Whether it is visible in its shortest form, because the items that must be shown exceed the budget."""

    @property
    def text(self) -> str:
        """The shown text; "": nothing is shown."""
        if self.form == "FULL":
            return self.item.stub if self.is_compact else self.item.text
        return self.item.stub if self.tokens else ""


class Packer:
    """Fills one budget.

    Args:
        budget: tokens available
        max_stubs: most stubs; packing also stops after this many turns that did not fit
        days: the headings that shown turns need
        stubs_evidence: whether recalled items that do not fit are shown as stubs
    """

    def __init__(self, budget: int, max_stubs: int, days: Days, *, stubs_evidence: bool = True) -> None:
        self.budget = budget
        self.used = days.tokens_of_today
        self._days = days
        self.is_over = False
        """Whether the items that must be shown exceed the budget."""
        self._max_stubs, self._stubs_evidence = max_stubs, stubs_evidence
        self._stubs = 0

    @property
    def free(self) -> int:
        """Remaining tokens; negative if the items that must be shown exceed the budget."""
        return self.budget - self.used

    def left_beside(self, items: Sequence[Item]) -> int:
        """Tokens that these items would leave, shown in full under their days; negative if they do not fit."""
        return self.free - self._tokens(items)

    def pack_unsuppressible(self, items: Sequence[Item], counted: Item | None) -> list[PlacedItem]:
        """Packs the items that must be shown, all in their shortest form if they exceed the budget.

        Args:
            items: the items; a deferred one is shown as its stub
            counted: the stub that counts further ones; None: there are none
        """
        if counted is not None:
            self.used += counted.stub_tokens
        full = self.used + sum([item.stub_tokens if item.tier == TIER_DEFERRED else item.tokens for item in items])
        self.is_over = full > self.budget
        placed = []
        for item in items:
            if item.tier == TIER_DEFERRED:
                placed.append(PlacedItem(item, "STUB", item.stub_tokens, "DEFERRED"))
            elif self.is_over and item.stub_tokens < item.tokens:
                placed.append(PlacedItem(item, "FULL", item.stub_tokens, None, 0, True))
            else:
                placed.append(PlacedItem(item, "FULL", item.tokens))
            self.used += placed[-1].tokens
        return placed

    def pack(self, item: Item) -> PlacedItem:
        """Packs one item: in full if it fits, otherwise as a stub if that fits. A deferred item is a stub at most."""
        if item.tier == TIER_DEFERRED:
            return self._stub(item, "DEFERRED", 0)
        short_by = self.used + item.tokens + self._days.tokens_of(item) - self.budget
        if short_by > 0:
            return self._stub(item, "BUDGET_EVICTION", short_by)
        return self._show_one(item)

    def _tokens(self, unit: Sequence[Item]) -> int:
        """Tokens of items that are shown together, and of the headings of their days."""
        return sum([each.tokens for each in unit]) + self._days.tokens(unit)

    def _show(self, unit: Sequence[Item]) -> list[PlacedItem]:
        """Places items in full. A new heading counts with the first item under it."""
        return [self._show_one(item) for item in unit]

    def _show_one(self, item: Item) -> PlacedItem:
        tokens = item.tokens + self._days.open(item)
        self.used += tokens
        return PlacedItem(item, "FULL", tokens)

    def stub(self, item: Item, reason: SuppressReason) -> PlacedItem:
        """Packs one item as a stub, if that fits, for a reason other than the budget."""
        return self._stub(item, reason, 0)

    def _stub(self, item: Item, reason: SuppressReason, short_by: int) -> PlacedItem:
        if self._stubs >= self._max_stubs or self.used + item.stub_tokens > self.budget:
            return PlacedItem(item, "NONE", 0, reason, short_by)
        self._stubs += 1
        self.used += item.stub_tokens
        return PlacedItem(item, "STUB", item.stub_tokens, reason, short_by)

    def stub_erased(self, placed: Iterable[PlacedItem]) -> tuple[PlacedItem, ...]:
        """Replaces visible erased items by stubs, the newest first, within the limit of stubs."""
        kept: list[PlacedItem] = []
        for each in reversed([*placed]):
            if each.item.is_erased and each.form == "FULL":
                self.used -= each.tokens
                each = self._stub(each.item, "ERASED", 0)
            kept.append(each)
        return tuple(reversed(kept))

    def pack_admitted(self, items: Iterable[Item], groups: Mapping[str, Sequence[Item]]) -> tuple[PlacedItem, ...]:
        """Packs turns and evidence, best first, until the budget is full or too many did not fit.

        Stubs are packed last, so that they never displace an item shown in full.

        Args:
            items: in the order of packing
            groups: all members of each group, which are shown together or not at all
        """
        placed: list[PlacedItem] = []
        missed: list[tuple[Sequence[Item], int]] = []
        done: set[str] = set()
        for item in items:
            unit: Sequence[Item] = (item,)
            if item.group is not None:
                if item.group in done:
                    continue
                done.add(item.group)
                unit = groups[item.group]
            short_by = self.used + self._tokens(unit) - self.budget
            if short_by <= 0:
                placed += self._show(unit)
            else:
                missed.append((unit, short_by))
            if len(missed) > self._max_stubs or self.used >= self.budget:
                break
        for unit, short_by in missed:
            placed += self._stub_all(unit, short_by)
        placed.sort(key=placed_order)
        return tuple(placed)

    def pack_history(self, said: Sequence[Item], wanted: int) -> tuple[tuple[PlacedItem, ...], Sequence[Item], int]:
        """Packs turns as chat messages. Also returns the oldest ones, which are cut if all are too many, and by how much.

        Args:
            said: items of turns, oldest first
            wanted: tokens that must stay free beside them
        """
        short_by, first = wanted - self.left_beside(said), 0
        left = short_by
        while left > 0 and first < len(said):
            turn, first = turn_of(said[first]), first + 1
            while first < len(said) and turn_of(said[first]) == turn:
                first += 1
            left = wanted - self.left_beside(said[first:])
        return tuple(self._show(said[first:] if first else said)), said[:first], max(0, short_by)

    def pack_matches(self, items: Iterable[tuple[Item, int]], groups: Mapping[str, Sequence[Item]]) -> tuple[PlacedItem, ...]:
        """Packs turns and evidence beside a history, best first, without stubs.

        Args:
            items: in the order of packing, each with the tokens that must stay free beside it
            groups: all members of each group, which are shown together or not at all
        """
        placed: list[PlacedItem] = []
        missed, done = 0, set[str]()
        for item, reserve in items:
            if item.group is None:
                unit, tokens = [item], item.tokens + self._days.tokens_of(item)
            elif item.group in done:
                continue
            else:
                done.add(item.group)
                unit = [*groups[item.group]]
                tokens = self._tokens(unit)
            short_by = self.used + tokens + reserve - self.budget
            if short_by <= 0:
                placed += self._show(unit)
                continue
            if not reserve:
                placed += [PlacedItem(each, "NONE", 0, "BUDGET_EVICTION", short_by) for each in unit]
            missed += 1
            if missed > self._max_stubs or self.used >= self.budget:
                break
        return tuple(placed)

    def has_room(self, items: Iterable[Item]) -> bool:
        """Whether all turns and evidence fit and leave tokens over, because packing stops at a full budget."""
        free, days = self.free, self._days
        shown = list[Item]()
        for item in items:
            shown.append(item)
            free -= item.tokens
            if free <= 0:
                return False
        return free > days.tokens(shown)

    def pack_everything(self, items: Iterable[Item]) -> tuple[PlacedItem, ...]:
        """Packs turns and evidence in full; the caller has checked that all fit."""
        placed = self._show([*items])
        placed.sort(key=placed_order)
        return tuple(placed)

    def _stub_all(self, unit: Sequence[Item], short_by: int) -> list[PlacedItem]:
        size = sum([each.stub_tokens for each in unit])
        if unit[0].kind == "evidence" and not self._stubs_evidence:
            return [PlacedItem(each, "NONE", 0, "BUDGET_EVICTION", short_by) for each in unit]
        if self._stubs + len(unit) > self._max_stubs or self.used + size > self.budget:
            return [PlacedItem(each, "NONE", 0, "BUDGET_EVICTION", short_by) for each in unit]
        return [self._stub(each, "BUDGET_EVICTION", short_by) for each in unit]
