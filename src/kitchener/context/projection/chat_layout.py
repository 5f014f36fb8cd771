"""Packs the newest turns as chat messages, and other turns and evidence that match the user's message beside it.

`window.py` chooses the newest turns. No provider's cache serves what is beside the message. For a message that asks for
something, all good matches are shown; for any other message only the best, and more if the past is short. Before version 6 of
the policy, the history gave up room for good matches.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final

from kitchener.context.fold.excerpts import asked_terms, beginning, excerpted, uncut
from kitchener.context.fold.items import RECENT, Item, place_of, recent, terse, turn_of
from kitchener.context.fold.state import ContextState
from kitchener.context.intents.reachability import Reach
from kitchener.context.lexical.questions import asks
from kitchener.context.projection.candidates import RankingQuery, ShownTurns, groups_of, once, recent_turns
from kitchener.context.projection.packer import Packer, PlacedItem, placed_order
from kitchener.context.projection.window import Window, first_recent, kept_recent
from kitchener.context.ruleset import Ruleset
from kitchener.records.ref import Ref
from kitchener.records.tokens import Estimator

_ASKED: Final = 0.15
"""If the message asks for something, a match is shown if it is at least this share of the best match."""
_TOLD: Final = 0.8
"""As `_ASKED`, for any other message."""
_SURE: Final = 0.7
"""Before version 6: how well the best match had to match so that the history left it room."""
_GOOD: Final = 0.1
"""Before version 6: how well others had to match to be shown with it."""
_STRONG: Final = 0.5
"""Before version 6: how well a turn had to match to be shown beside a long history in any other case."""
_RESERVE: Final = 2
"""Weak matches leave so many times the tokens of the past free."""


class ChatLayout:
    """Packs turns under one policy. It keeps no state between calls.

    Args:
        ruleset: the policy
        estimate: counts the tokens of a text
    """

    def __init__(self, ruleset: Ruleset, estimate: Estimator) -> None:
        self.ruleset, self.estimate = ruleset, estimate
        self._window = Window.under(ruleset)
        steps = ruleset.is_steady and ruleset.recent_turns is not None
        self._recent_kept = kept_recent(ruleset.recent_turns or 0, ruleset.evict_to) if steps else None

    def pack(
        self, state: ContextState, reach: Reach, recalled: Sequence[Item], query: RankingQuery, packer: Packer
    ) -> ShownTurns:
        """Packs the newest turns as a history of chat messages, and then other turns and evidence that match the message."""
        turns = reach.turns if reach.turns is not None else []
        said, newest, start = self._newest(state, reach, turns)
        if state.has_erased:  # they are mentioned beside the message
            said = [item for item in said if not item.is_erased]
        if self.ruleset.keeps_oldest:
            said = self._longer_newest(said, packer)
        else:
            said = _whole_newest_before_10(said, state.turns, packer.free)
        evidence = once(recalled, state, reach, newest) if recalled else ()
        positions = dict[str, int]()
        matches_beside = partial(self._matches, turns, evidence, query, positions)
        seen, wanted = list[tuple[Item, float]](), 0
        matches: Iterable[tuple[Item, float]] | None = None
        if not self.ruleset.is_steady and said and (start or evidence):
            matches = matches_beside({item.ref for item in said})
            seen, wanted = self._wanted(matches)
        history, cut, cut_by = packer.pack_history(said, wanted)
        placed = history
        considered: Sequence[Item] = evidence
        if evidence or start or cut:
            if cut or matches is None:
                seen, matches = [], matches_beside({each.item.ref for each in history})
            shown = sum([each.tokens for each in history])
            if self.ruleset.is_steady:
                past = max(shown, state.history.ends[-1] if state.history.ends else 0)
                offered = _reserving(matches, _RESERVE * past, _ASKED if asks(query.message) else _TOLD)
            else:
                offered = _reserving_before_6(chain(seen, matches), _RESERVE * shown)
            grouped = [self._terse(item) for item in evidence if item.group is not None]
            found = packer.pack_matches(offered, groups_of(grouped))
            known = {each.item.ref for each in found}
            if self.ruleset.leaves_out_weak:
                considered = [item for item in evidence if item.ref in known]
            left_out = [PlacedItem(item, "NONE", 0, "BUDGET_EVICTION", cut_by) for item in cut if item.ref not in known]
            placed = tuple(sorted((*left_out, *history, *found), key=placed_order))
        return ShownTurns(placed, (*newest, *considered), positions, history, cut_by)

    def _newest(self, state: ContextState, reach: Reach, turns: Sequence[Item]) -> tuple[Sequence[Item], tuple[Item, ...], int]:
        """The newest items of the session, oldest first.

        Returns all of them as the history shows them, those among them that belong to another intent, and the position of the
        first in the list that the window chose from.
        """
        history, most, recent_count = state.history, self._window.most, self.ruleset.recent_turns
        if recent_count is not None:
            others = recent_turns(state, reach, first_recent(state.turn_list, recent_count, self._recent_kept))
            history.follow(turns, most)
            start = self._window.start(history.items, history.ends)
            shown = history.items[start:]
            if others:
                shown = sorted((*shown, *[beginning(item, most, self.estimate) for item in others]), key=place_of)
            return shown, others, start
        # One window over all intents, so that another active intent changes none of the messages.
        history.follow(turns if len(turns) == len(state.turn_list) else state.turn_list, most)
        start = self._window.start(history.items, history.ends)
        known, own = state.turns, {record.intent_id for record in reach.intents}
        shown = [item if known[item.entity_id].intent_id in own else recent(item) for item in history.items[start:]]
        return shown, tuple([item for item in shown if item.reasons == RECENT]), start

    def evidence(self, recalled: Sequence[Item], state: ContextState, reach: Reach, newest: Sequence[Item]) -> Sequence[Item]:
        """What was recalled, each piece once, with short labels, without eligible turns and without the newest turns."""
        return [self._terse(item) for item in once(recalled, state, reach, newest)] if recalled else ()

    def _terse(self, item: Item) -> Item:
        return terse(item, self.estimate) if self.ruleset.is_terse else item

    def _longer_newest(self, said: Sequence[Item], packer: Packer) -> Sequence[Item]:
        """The history, with more of each long item of its newest turn that takes at most half of the free tokens.

        An item is whole, or has as many tokens as the history leaves, which so begins where it would without them.
        """
        if not any(item.whole for item in said[-2:]):
            return said
        newest, left = turn_of(said[-1]), packer.left_beside(said)
        shown = list[Item]()
        for item in reversed(said[-2:]):  # the reply first, to which the next message most often refers
            if left > 0 and item.whole and turn_of(item) == newest:
                whole, room = uncut(item, self.estimate), left + item.tokens
                if 2 * whole.tokens <= packer.free:
                    item = beginning(whole, room, self.estimate)
                    left = room - item.tokens
            shown.append(item)
        return [*said[:-2], *reversed(shown)]

    def _matches(
        self,
        turns: Sequence[Item],
        evidence: Sequence[Item],
        query: RankingQuery,
        positions: dict[str, int],
        taken: set[Ref],
    ) -> Iterator[tuple[Item, float]]:
        """Turns and evidence that are not in `taken`, best first, each with its match.

        Since version 6 of the policy, a match is a share of the best one, even if the best one is in `taken`.
        """
        message, active, ranking = query
        if active is None:
            yield from [(self._terse(item), 1.0) for item in sorted(evidence, key=place_of, reverse=True)]
            return
        if ranking is None:
            return
        count, asked, most = len(turns), dict[str, float](), self.ruleset.excerpt_tokens
        offered: Sequence[Item] = [*turns, *evidence] if evidence else turns
        best = 0.0
        for index, grade in ranking.grade(message, offered):
            item = offered[index]
            best = best or (grade if self.ruleset.is_steady else 1.0)
            if item.ref in taken:
                continue
            taken.add(item.ref)
            if index < count:
                positions[item.entity_id] = index
            else:
                item = self._terse(item)
            if item.tokens > most:
                asked = asked or {**asked_terms(message)}
                item = excerpted(item, asked, most, self.estimate)
            yield item, grade / best if best else 0.0

    def _wanted(self, matches: Iterable[tuple[Item, float]]) -> tuple[list[tuple[Item, float]], int]:
        """The matches that were read, best first, and the tokens that the history gives up for them.

        The history loses no tokens unless the best match shows that the message asks for something said earlier.
        """
        most = self.ruleset.context_budget * 17 // 20  # the history's beginning changes anyway, so there is no smaller limit
        seen, wanted = list[tuple[Item, float]](), 0
        for each in matches:
            seen.append(each)
            if each[1] < (_GOOD if wanted else _SURE):
                break
            wanted += each[0].tokens
            if wanted >= most:
                return seen, most
        return seen, wanted


def _whole_newest_before_10(said: Sequence[Item], turns: Mapping[str, Item], free: int) -> Sequence[Item]:
    """Before version 10 of the policy: the items of the newest turn in full where each took at most half of the free tokens."""
    if not said or not any(item.whole for item in said[-2:]):
        return said
    newest = turn_of(said[-1])
    whole = [turns[item.entity_id] if item.whole and turn_of(item) == newest else item for item in said[-2:]]
    fitting = [item if 2 * full.tokens > free else full for item, full in zip(said[-2:], whole, strict=True)]
    return [*said[:-2], *fitting]


def _reserving(matches: Iterable[tuple[Item, float]], reserve: int, least: float) -> Iterator[tuple[Item, int]]:
    """Matches, each with the tokens that must stay free beside it: 0 if its share of the best match is at least `least`.

    The longer the past is, the fewer weak matches are shown, because no cache serves them.
    """
    for item, share in matches:
        yield item, 0 if share >= least else reserve


def _reserving_before_6(matches: Iterable[tuple[Item, float]], reserve: int) -> Iterator[tuple[Item, int]]:
    """The result of `_reserving` before version 6 of the policy: the best match decided how well others had to match."""
    least = 0.0
    for item, grade in matches:
        least = least or (_GOOD if grade >= _SURE else _STRONG)
        yield item, 0 if grade >= least else reserve
