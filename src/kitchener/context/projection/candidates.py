"""Collects the turns and the evidence that a projection may show. This module does not choose among them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, overload

from kitchener.context.fold.items import Item, recent
from kitchener.context.fold.state import ContextState
from kitchener.context.intents.reachability import Reach
from kitchener.context.projection.packer import PlacedItem
from kitchener.records.ref import Ref


class Ranking(Protocol):
    """Ranks the items of one session against a message."""

    @property
    def admits_all(self) -> bool:
        """Whether `rank` admits every item, so that it is not asked while all of them fit the budget."""
        ...

    def rank(self, message: str, items: Sequence[Item]) -> Iterable[int]:
        """The places of the admitted items, best first."""
        ...

    def grade(self, message: str, items: Sequence[Item]) -> Iterable[tuple[int, float]]:
        """The places of the matching items, best first, each with how well it matches: 1 for every word."""
        ...


class RankingQuery(NamedTuple):
    """What turns and evidence are ranked against."""

    message: str
    """The user's message."""
    active: str | None
    """The active intent; None: nothing is ranked, and evidence goes by age."""
    ranking: Ranking | None
    """Ranks them; None: turns go by age."""


class Joined(Sequence[Item]):
    """Turns followed by evidence, without a copy, because there may be many turns."""

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


def recent_turns(state: ContextState, reach: Reach, first: int) -> tuple[Item, ...]:
    """The session's turns from position `first` to the newest, without eligible ones, oldest first."""
    known = state.turn_list
    if first == len(known) or len(known) == len(reach.turns or ()):  # every turn is eligible, as in most sessions
        return ()
    own, turns = {record.intent_id for record in reach.intents}, state.turns
    newest = [turns[item.entity_id] for item in known[first:]]
    return tuple([recent(item) for item in newest if item.intent_id not in own])


def once(recalled: Sequence[Item], state: ContextState, reach: Reach, newest: Sequence[Item]) -> tuple[Item, ...]:
    """Each piece of evidence once, without eligible turns and without the newest turns."""
    own, taken = {record.intent_id for record in reach.intents}, {item.ref for item in newest}
    first: dict[Ref, Item] = {}
    for item in recalled:
        turn = state.turns.get(item.entity_id)
        if item.ref not in taken and (turn is None or turn.ref != item.ref or turn.intent_id not in own):
            first.setdefault(item.ref, item)
    return tuple(first.values())


def groups_of(evidence: Sequence[Item]) -> dict[str, list[Item]]:
    groups: dict[str, list[Item]] = {}
    for item in evidence:
        if item.group is not None:
            groups.setdefault(item.group, []).append(item)
    return groups


class ShownTurns(NamedTuple):
    """The turns and the evidence of a projection."""

    placed: tuple[PlacedItem, ...]
    others: tuple[Item, ...]
    """Recent turns of other intents and evidence that were considered."""
    positions: Mapping[str, int]
    history: tuple[PlacedItem, ...] | None = None
    cut_by: int = 0
