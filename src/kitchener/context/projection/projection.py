"""Chooses which eligible items are shown within a token budget, and gives the reason for each suppressed item.

Six tiers are packed in order: headers and rules, failed work orders, open work orders, learned lines, waiting work orders (as
stubs), turns. The first two tiers cannot be suppressed. An admission policy selects the turns. Turns that it does not admit
are never read, so the cost does not grow with the number of turns. This module does not change which items are eligible.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final, Literal, NamedTuple, overload

from kitchener.context.flags import Flag
from kitchener.context.fold.items import (
    Estimator,
    Item,
    counted_item,
    estimator,
    intent_item,
    rule_items,
)
from kitchener.context.fold.state import ContextState
from kitchener.context.intents.active import Resolution
from kitchener.context.intents.reachability import Reach, reach_from
from kitchener.context.projection.packing import Packer, Placed, SuppressReason
from kitchener.context.ruleset import Ruleset
from kitchener.errors import ConfigError
from kitchener.records.ref import Ref

_place_of: Final = attrgetter("place")

Rank = Callable[[str, Sequence[Item]], Iterable[int]]
"""`(message, items)` to positions in `items`, best first. Those it leaves out are not admitted."""
Offer = Callable[[Sequence[Item]], None]
"""Takes note of items that needed no ranking, because all of them are admitted whatever their order."""
Mode = Literal["enforce", "shadow"]

NOT_ADMITTED: Final[SuppressReason] = "LOW_URGENCY"


class Projection(NamedTuple):
    """A decision about one turn's context. Cheap to keep: it shares its items with the state it was made from."""

    intent_id: str | None
    """The active intent; None: the turn has none."""
    mode: Mode
    """Whether the model really saw it."""
    token_budget: int
    """Tokens that it might take."""
    tokens_used: int
    """Tokens that it takes; more than the budget only where the flags say so."""
    head: tuple[Placed, ...]
    """Every eligible item of tiers 1 to 5, in order."""
    counted: Item | None
    """The stub that stands for failed work orders beyond the limit."""
    turns: Sequence[Item]
    """Of which the first `turn_count` are eligible; may have grown since."""
    turn_count: int
    recalled: tuple[Item, ...]
    """Evidence from elsewhere that was offered; never eligible."""
    placed: tuple[Placed, ...]
    """The turns and evidence that were admitted, in chronological order. All others are `LOW_URGENCY`."""
    flags: tuple[Flag, ...]
    ruleset_hash: str
    positions: Mapping[str, int] = {}
    """Where ranked turns stand among `turns`, by id; of others it says nothing."""

    @property
    def visible(self) -> tuple[Placed, ...]:
        """What is shown in full: what is eligible by tier and age, then recalled evidence by age."""
        full = [each for each in (*self.head, *self.placed) if each.form == "FULL"]
        if self.recalled:
            full.sort(key=_is_evidence)
        return tuple(full)

    def eligible(self) -> Iterator[Item]:
        """Everything eligible, by tier and age. Grows with the session."""
        for each in self.head:
            yield each.item
        for n in range(self.turn_count):
            yield self.turns[n]

    def suppressed(self) -> Iterator[Placed]:
        """What is not shown in full, in the same order. Grows with the session."""
        yield from (each for each in self.head if each.form != "FULL")
        yield from self._hidden(self.turns[: self.turn_count])
        yield from self.suppressed_evidence()

    def suppressed_evidence(self) -> Iterator[Placed]:
        """The recalled part of it, by age."""
        return self._hidden(sorted(self.recalled, key=_place_of))

    def _hidden(self, items: Iterable[Item]) -> Iterator[Placed]:
        admitted = {each.item.ref: each for each in self.placed}
        for item in items:
            place = admitted.get(item.ref)
            if place is None:
                yield Placed(item, "NONE", 0, NOT_ADMITTED, max(0, item.tokens - self.free))
            elif place.form != "FULL":
                yield place

    @property
    def free(self) -> int:
        """Tokens of the budget that are left; negative where it was exceeded."""
        return self.token_budget - self.tokens_used


class Projector:
    """Makes projections under one ruleset. Make it once per agent class; it keeps nothing between calls.

    Args:
        ruleset: the policy
        estimate: a plugged-in tokenizer; None: the built-in one that the ruleset names
        rank: ranks turns against the message; needed where the ruleset admits by `lexical`
        offer: called in the place of `rank` where there is room for everything; only for one that never leaves an item out

    Raises:
        ConfigError: a ranking is needed and missing, or the estimator's name is unknown
    """

    def __init__(
        self, ruleset: Ruleset, *, estimate: Estimator | None = None, rank: Rank | None = None, offer: Offer | None = None
    ) -> None:
        if ruleset.admission == "lexical" and rank is None:
            raise ConfigError("ruleset", "admission", "'lexical'", "needs a ranking; pass one, or take 'newest_first'")
        self.ruleset = ruleset
        self.estimate = estimate if estimate is not None else estimator(ruleset.token_estimator)
        self._rank, self._offer = rank, offer
        self._rules = rule_items(ruleset.standing_rules, self.estimate)

    def project(
        self,
        state: ContextState,
        resolution: Resolution,
        *,
        message: str = "",
        biases: Sequence[Item] = (),
        recalled: Sequence[Item] = (),
        tokens_left: int | None = None,
        mode: Mode = "enforce",
    ) -> Projection:
        """What the turn's model is shown.

        Args:
            state: the session's fold
            resolution: the active intent; must not be blocked
            message: the user's message, for the ranking
            biases: memory lines, made with `bias_item`
            recalled: evidence from beyond the intent, made with `evidence_item` or `recalled`
            tokens_left: what the turn may still use; the reply's own budget is taken off first. None: no such limit
            mode: whether it will be shown

        Raises:
            ValueError: the resolution is blocked, so there is no projection
        """
        if resolution.blocked_by is not None:
            raise ValueError(f"no projection while {resolution.blocked_by} stands in the way")
        ruleset = self.ruleset
        budget = ruleset.context_budget
        if tokens_left is not None:
            budget = max(0, min(budget, tokens_left - ruleset.reply_reserve))
        reach = reach_from(state, resolution.active)
        packer = Packer(budget, ruleset.max_stubs)
        head, counted = self._pack_head(reach, biases, packer)
        flags = resolution.flags
        if packer.is_over:
            detail = f"what must be shown takes more than the budget of {budget} tokens; it is shown in its shortest form"
            flags = (*flags, Flag("UNSUPPRESSIBLE_OVER_BUDGET", detail))
        turns = reach.turns if reach.turns is not None else []
        evidence = _once(recalled, state, reach) if recalled else ()
        placed, positions = self._pack_turns(turns, evidence, message, resolution.active, packer)
        if state.has_erased:
            placed, head = packer.stub_erased(placed), packer.stub_erased(head)
        return Projection(
            resolution.active,
            mode,
            budget,
            packer.used,
            head,
            counted,
            turns,
            len(turns),
            evidence,
            placed,
            flags,
            ruleset.ruleset_hash,
            positions,
        )

    def _pack_head(self, reach: Reach, biases: Sequence[Item], packer: Packer) -> tuple[tuple[Placed, ...], Item | None]:
        """Tiers 1 to 5."""
        must, others, uncounted = self._sorted_head(reach)
        counted = counted_item(uncounted, self.estimate) if uncounted else None
        placed = packer.pack_unsuppressible(must, counted)
        placed += [Placed(item, "STUB", 0, NOT_ADMITTED) for item in uncounted]
        others += biases
        if len(others) > 1:
            others.sort(key=_order_of)
        placed += [packer.pack(item) for item in others]
        # Rules stay as they were configured; the others are put into the order of their tiers.
        rules = len(self._rules)
        return (*placed[:rules], *sorted(placed[rules:], key=_order_of_placed)), counted

    def _sorted_head(self, reach: Reach) -> tuple[list[Item], list[Item], list[Item]]:
        """What must be shown, what may be, and the failed work orders that are only counted."""
        estimate = self.estimate
        must = list(self._rules)
        for n, record in enumerate(reach.intents):
            must.append(record.header(estimate, is_active=n == 0))
        others, failed = [], []
        if reach.deferred is not None:
            record = reach.deferred
            others.append(
                intent_item(record.declared, record.facts, record.last.ref, estimate, is_active=False, is_deferred=True)
            )
        work = reach.work_orders
        blockers = {each for record in work if record.status != "failed" for each in record.blocked_by} if work else ()
        for each in work:
            item = each.item(estimate)
            if each.status == "failed":
                failed.append(item)
            elif each.wo_id in blockers:
                must.append(item)
            else:
                others.append(item)
        shown = len(failed) - self.ruleset.max_failed_items
        return must + failed[max(0, shown) :], others, failed[: max(0, shown)]

    def _pack_turns(
        self, turns: list[Item], evidence: Sequence[Item], message: str, active: str | None, packer: Packer
    ) -> tuple[tuple[Placed, ...], Mapping[str, int]]:
        """Tier 6, and evidence; and where of the turns those stand that were ranked."""
        if active is not None:
            by_age = self.ruleset.admission == "newest_first"
            offered: Sequence[Item] = turns if by_age or not evidence else _Joined(turns, evidence)
            # Where all are placed in full, and stand by age, the order in which they come changes nothing.
            if (by_age or self._offer is not None) and _has_room(offered, packer.free):
                if self._offer is not None and not by_age:
                    self._offer(offered)
                return packer.pack_everything(offered), {}
        positions: dict[str, int] = {}
        placed = packer.pack_admitted(self._admitted(turns, evidence, message, active, positions), _groups(evidence))
        return placed, positions

    def _admitted(
        self, turns: list[Item], recalled: Sequence[Item], message: str, active: str | None, positions: dict[str, int]
    ) -> Iterable[Item]:
        """Turns and evidence in the order in which they may take what is left of the budget."""
        if active is None:
            return sorted(recalled, key=_place_of, reverse=True)
        if self._rank is None or self.ruleset.admission == "newest_first":
            return reversed(turns)
        return self._ranked(turns, recalled, self._rank, message, positions)

    def _ranked(
        self, turns: list[Item], recalled: Sequence[Item], rank: Rank, message: str, positions: dict[str, int]
    ) -> Iterator[Item]:
        count = len(turns)
        newest_from = count - min(self.ruleset.newest_turns, count)
        yield from reversed(turns[newest_from:])
        offered: Sequence[Item] = _Joined(turns, recalled) if recalled else turns
        taken = {*range(newest_from, count)}
        for index in rank(message, offered):
            if index not in taken:
                taken.add(index)
                item = offered[index]
                if index < count:
                    positions[item.entity_id] = index
                yield item


class _Joined(Sequence[Item]):
    """Turns and, after them, evidence: without a copy, because the turns may be many."""

    def __init__(self, turns: Sequence[Item], evidence: Sequence[Item]) -> None:
        self._turns, self._evidence, self._count = turns, evidence, len(turns)

    def __len__(self) -> int:
        return self._count + len(self._evidence)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        if isinstance(index, slice):
            return [self[n] for n in range(*index.indices(len(self)))]
        return self._turns[index] if index < self._count else self._evidence[index - self._count]


def _has_room(items: Sequence[Item], free: int) -> bool:
    """Whether all of them fit and leave something: packing stops where nothing is left. Looks at no more than may fit."""
    for item in items:
        free -= item.tokens
        if free <= 0:
            return False
    return free > 0


def _once(recalled: Sequence[Item], state: ContextState, reach: Reach) -> tuple[Item, ...]:
    """Each piece of evidence once, without turns that are eligible anyway."""
    own = {record.intent_id for record in reach.intents}
    first: dict[Ref, Item] = {}
    for item in recalled:
        turn = state.turns.get(item.entity_id)
        if turn is None or turn.ref != item.ref or turn.intent_id not in own:
            first.setdefault(item.ref, item)
    return tuple(first.values())


def _groups(evidence: Sequence[Item]) -> dict[str, list[Item]]:
    groups: dict[str, list[Item]] = {}
    for item in evidence:
        if item.group is not None:
            groups.setdefault(item.group, []).append(item)
    return groups


def _is_evidence(placed: Placed) -> bool:
    return placed.item.kind == "evidence"


def _order_of(item: Item) -> tuple[int, tuple[str, str, str]]:
    return (item.tier, item.place)


def _order_of_placed(placed: Placed) -> tuple[int, tuple[str, str, str]]:
    return (placed.item.tier, placed.item.place)
