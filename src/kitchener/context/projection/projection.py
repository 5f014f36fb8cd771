"""Chooses which eligible items are shown within a token budget, and gives the reason for each suppressed item.

Nine tiers are packed in order: headers and rules, failed work orders, open work orders, learned lines, waiting work orders (as
stubs), results of tools, the session's newest turns under other intents, turns of the intent, images and files of shown turns.
The first two tiers cannot be suppressed. An admission policy selects the turns. Turns that it does not admit are never read, so
the cost does not grow with the number of turns. This module does not change which items are eligible.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from kitchener.context.flags import Flag
from kitchener.context.fold.context_events import Brought
from kitchener.context.fold.excerpts import asked_terms, excerpted
from kitchener.context.fold.items import (
    Item,
    counted_item,
    estimator,
    intent_item,
    newest_from,
    part_item,
    place_of,
    rule_items,
    turn_of,
    unspoken,
)
from kitchener.context.fold.state import ContextState
from kitchener.context.intents.active import Resolution
from kitchener.context.intents.reachability import Reach, reach_from
from kitchener.context.intents.transitions import BRIDGE_OBJECTIVE
from kitchener.context.projection.candidates import Joined, Ranking, RankingQuery, ShownTurns, groups_of, recent_turns
from kitchener.context.projection.chat_layout import ChatLayout
from kitchener.context.projection.days import Days, NoDays
from kitchener.context.projection.packer import Packer, PlacedItem, placed_order
from kitchener.context.ruleset import Ruleset
from kitchener.errors import ConfigError
from kitchener.media.media_types import accepts
from kitchener.records.entries import ProjectionMode, SuppressReason
from kitchener.records.tokens import Estimator

NOT_ADMITTED: Final[SuppressReason] = "LOW_URGENCY"


class Projection(NamedTuple):
    """A decision about one turn's context. It shares its items with the session's state."""

    intent_id: str | None
    """The active intent; None: the turn has none."""
    mode: ProjectionMode
    """Whether the model saw it."""
    token_budget: int
    """Most tokens of the shown context: `context_budget`, or less if the turn has fewer left after `reply_reserve`."""
    tokens_used: int
    """Tokens of the shown context; above the budget only with a flag."""
    head: tuple[PlacedItem, ...]
    """All eligible items of tiers 1 to 6, in order, then the considered images and files."""
    counted: Item | None
    """The stub that counts failed work orders beyond the limit; None: there are none."""
    turns: Sequence[Item]
    """The first `turn_count` are eligible. The list may have grown since."""
    turn_count: int
    recalled: tuple[Item, ...]
    """Recent turns of other intents and recalled evidence that were considered; never eligible."""
    placed: tuple[PlacedItem, ...]
    """The admitted turns and evidence, in chronological order. All others are `LOW_URGENCY`."""
    flags: tuple[Flag, ...]
    ruleset_hash: str
    positions: Mapping[str, int] = {}
    """Positions of ranked turns in `turns`, by id; turns that were not ranked are missing."""
    session_id: str | None = None
    """The running session; None: not known."""
    today: str = ""
    """The date of the running turn, ISO form, if turns stand under the dates of their days; "": they do not."""
    history: tuple[PlacedItem, ...] | None = None
    """The items of `placed` that are shown as chat messages; None: all turns are shown in one text."""
    cut_by: int = 0
    """Tokens that the history had to give up in this turn, because other items left it too little room."""
    goal_moves: bool = False
    """Whether the active intent's goal follows the history, because the goal changes with the intent."""
    resumed_id: str | None = None
    """The deferred work order that the turn continues, which is not shown; None: it continues none."""

    @property
    def visible(self) -> tuple[PlacedItem, ...]:
        """The items shown in full: eligible ones by tier and age, then recalled evidence by age."""
        full = [each for each in (*self.head, *self.placed) if each.form == "FULL"]
        if self.recalled:
            full.sort(key=_is_evidence)
        return tuple(full)

    def eligible(self) -> Iterator[Item]:
        """All eligible items, by tier and age. Grows with the session."""
        for each in self.head:
            yield each.item
        for n in range(self.turn_count):
            yield self.turns[n]

    def suppressed(self) -> Iterator[PlacedItem]:
        """The items not shown in full, in the order of `visible`. Grows with the session."""
        yield from (each for each in self.head if each.form != "FULL")
        yield from self._hidden(self.turns[: self.turn_count])
        yield from self.suppressed_evidence()

    def suppressed_evidence(self) -> Iterator[PlacedItem]:
        """The recalled evidence not shown in full, by age."""
        return self._hidden(sorted(self.recalled, key=place_of))

    def _hidden(self, items: Iterable[Item]) -> Iterator[PlacedItem]:
        admitted = {each.item.ref: each for each in self.placed}
        for item in items:
            placed = admitted.get(item.ref)
            if placed is None:
                yield PlacedItem(item, "NONE", 0, NOT_ADMITTED, max(0, item.tokens - self.free))
            elif placed.form != "FULL":
                yield placed

    @property
    def free(self) -> int:
        """Remaining tokens of the budget; negative if it was exceeded."""
        return self.token_budget - self.tokens_used


class Projector:
    """Makes projections under one ruleset. It keeps no state between calls, so one object serves an agent class.

    Args:
        ruleset: the policy
        estimate: a plugged-in tokenizer; None: the built-in one that the ruleset names

    Raises:
        ConfigError: the estimator's name is unknown
    """

    def __init__(self, ruleset: Ruleset, *, estimate: Estimator | None = None) -> None:
        self.ruleset = ruleset
        self.estimate = estimate if estimate is not None else estimator(ruleset.token_estimator)
        self._chat = ChatLayout(ruleset, self.estimate)
        self._rules = rule_items(ruleset.standing_rules, self.estimate)

    def project(  # noqa: PLR0913  what a decision depends on; the state and the resolution by position
        self,
        state: ContextState,
        resolution: Resolution,
        *,
        message: str = "",
        ranking: Ranking | None = None,
        biases: Sequence[Item] = (),
        recalled: Sequence[Item] = (),
        results: Sequence[Item] = (),
        tokens_left: int | None = None,
        mode: ProjectionMode = "enforce",
        media_types: Collection[str] = (),
        turn_ts: str = "",
        resumed_id: str | None = None,
    ) -> Projection:
        """Chooses the context of a turn.

        Args:
            state: the session's state
            resolution: the active intent; must not be blocked
            message: the user's message, for the ranking
            ranking: ranks the session's turns; required if the ruleset admits by `lexical`. None: in chat layout, only the
                history is shown
            biases: learned lines, made with `bias_item`
            recalled: evidence from beyond the intent, made with `evidence_item` or `recalled`
            results: results of tools, oldest first, made with `result_item`; those of the intent and of intents above it are
                eligible
            tokens_left: tokens that the turn may still use, including the reply's reserve; None: no such limit
            mode: whether the model will see it
            media_types: the types of images and files that the model takes, such as `image/*`
            turn_ts: when the turn started, ISO time; "": not known, and nothing is dated
            resumed_id: the deferred work order that the turn continues, which the model gets as it was; None: it continues
                none

        Raises:
            ConfigError: a ranking is required and missing
            ValueError: the resolution is blocked, so there is no projection
        """
        query = RankingQuery(message, resolution.active, self._used(ranking))
        if resolution.blocked_by is not None:
            raise ValueError(f"no projection until {resolution.blocked_by} is resolved")
        ruleset, budget = self.ruleset, self._budget(tokens_left)
        today = turn_ts[:10] if ruleset.is_split else ""
        resumed_id = resumed_id if ruleset.hides_resumed else None
        reach = reach_from(state, resolution.active)
        packer = self._packer(budget, today, state.session_id)
        head, counted = self._pack_head(reach, biases, results, packer, resumed_id)
        flags = (*resolution.flags, _over_budget(budget)) if packer.is_over else resolution.flags
        pack = self._chat.pack if ruleset.is_chat else self._pack_text
        shown = pack(state, reach, recalled, query, packer)
        placed = shown.placed
        if state.parts and ruleset.recent_parts:
            head = (*head, *_pack_parts(state, reach, placed, packer, (ruleset.recent_parts, media_types)))
        if state.has_erased:
            placed, head = packer.stub_erased(placed), packer.stub_erased(head)
        turns = reach.turns if reach.turns is not None else []
        return Projection(
            intent_id=resolution.active,
            mode=mode,
            token_budget=budget,
            tokens_used=packer.used,
            head=head,
            counted=counted,
            turns=turns,
            turn_count=len(turns),
            recalled=shown.others,
            placed=placed,
            flags=flags,
            ruleset_hash=ruleset.ruleset_hash,
            positions=shown.positions,
            session_id=state.session_id,
            today=today,
            history=shown.history,
            cut_by=shown.cut_by,
            goal_moves=ruleset.is_steady,
            resumed_id=resumed_id,
        )

    def _used(self, ranking: Ranking | None) -> Ranking | None:
        """The ranking, if the ruleset admits by one."""
        if self.ruleset.admission == "newest_first":
            return None
        if ranking is None:
            raise ConfigError("ruleset", "admission", "'lexical'", "needs a ranking; pass one, or take 'newest_first'")
        return ranking

    def _packer(self, budget: int, today: str, session_id: str | None) -> Packer:
        """Packs items into the budget, and counts the dates that they are shown under."""
        own_session = None if self.ruleset.is_chat else session_id
        days = Days(today, own_session, self.estimate) if today else NoDays()
        return Packer(budget, self.ruleset.max_stubs, days, stubs_evidence=not self.ruleset.is_terse)

    def _budget(self, tokens_left: int | None) -> int:
        """Most tokens of the context, if the turn may still use `tokens_left`."""
        budget = self.ruleset.context_budget
        return budget if tokens_left is None else max(0, min(budget, tokens_left - self.ruleset.reply_reserve))

    def _pack_text(
        self, state: ContextState, reach: Reach, recalled: Sequence[Item], query: RankingQuery, packer: Packer
    ) -> ShownTurns:
        """Packs turns and evidence for one text."""
        turns = reach.turns if reach.turns is not None else []
        newest = recent_turns(state, reach, newest_from(state.turn_list, self.ruleset.recent_turns or 0))
        recent_placed = [packer.pack(item) for item in self._excerpts(reversed(newest), query.message, "", packer)]
        evidence = self._chat.evidence(recalled, state, reach, newest)
        placed, positions = self._pack_turns(turns, evidence, query, packer)
        if newest:
            placed = tuple(sorted((*recent_placed, *placed), key=placed_order))
        return ShownTurns(placed, (*newest, *evidence), positions)

    def _pack_head(
        self, reach: Reach, biases: Sequence[Item], results: Sequence[Item], packer: Packer, resumed_id: str | None
    ) -> tuple[tuple[PlacedItem, ...], Item | None]:
        """Packs tiers 1 to 6."""
        must, others, uncounted = self._sorted_head(reach)
        resumed = [item for item in (*must, *others) if item.entity_id == resumed_id] if resumed_id is not None else ()
        if resumed:
            must, others = [each for each in must if each not in resumed], [each for each in others if each not in resumed]
        counted = counted_item(uncounted, self.estimate, is_plain=self.ruleset.is_plain) if uncounted else None
        placed = packer.pack_unsuppressible(must, counted)
        placed += [PlacedItem(item, "STUB", 0, NOT_ADMITTED) for item in uncounted]
        placed += [PlacedItem(item, "NONE", 0, "DEFERRED") for item in resumed]
        others += biases
        if len(others) > 1:
            others.sort(key=_order_of)
        placed += [packer.pack(item) for item in others]
        if results:  # the newest first, because an old result is most likely to be out of date
            own = {record.intent_id for record in reach.intents}
            placed += [packer.pack(item) for item in reversed(results) if item.intent_id in own]
        # Rules keep their configured order; all others are sorted by tier.
        rules = len(self._rules)
        return (*placed[:rules], *sorted(placed[rules:], key=_order_of_placed)), counted

    def _sorted_head(self, reach: Reach) -> tuple[list[Item], list[Item], list[Item]]:
        """The items that must be shown, those that may be, and the failed work orders that are only counted."""
        estimate = self.estimate
        must = list(self._rules)
        for n, record in enumerate(reach.intents):
            header = record.header(estimate, is_active=n == 0)
            says_nothing = self.ruleset.is_terse and record.facts.objective == BRIDGE_OBJECTIVE
            must.append(unspoken(header) if says_nothing else header)
        others, failed = [], []
        if reach.deferred is not None:
            record = reach.deferred
            declared, is_plain = record.declared, self.ruleset.is_plain
            item = intent_item(
                declared, record.facts, record.last.ref, estimate, is_active=False, is_deferred=True, is_plain=is_plain
            )
            others.append(item)
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
        self, turns: list[Item], evidence: Sequence[Item], query: RankingQuery, packer: Packer
    ) -> tuple[tuple[PlacedItem, ...], Mapping[str, int]]:
        """Packs tier 8 and evidence; also returns the positions of the ranked turns."""
        ranking = query.ranking
        if query.active is not None:
            offered: Sequence[Item] = turns if ranking is None or not evidence else Joined(turns, evidence)
            # If all fit, they are shown by age, so the order of packing changes nothing.
            if (ranking is None or ranking.admits_all) and packer.has_room(offered):
                return packer.pack_everything(offered), {}
        positions: dict[str, int] = {}
        admitted = self._admitted(turns, evidence, query, positions)
        last = turn_of(turns[-1]) if turns else ""
        placed = packer.pack_admitted(self._excerpts(admitted, query.message, last, packer), groups_of(evidence))
        return placed, positions

    def _excerpts(self, items: Iterable[Item], message: str, last: str, packer: Packer) -> Iterator[Item]:
        """The items, long ones as excerpts. Those of the turn `last` stay whole if each takes at most half of what is free."""
        most, asked = self.ruleset.excerpt_tokens, dict[str, float]()
        for item in items:
            if most and item.tokens > most and (turn_of(item) != last or 2 * item.tokens > packer.free):
                asked = asked or {**asked_terms(message)}
                item = excerpted(item, asked, most, self.estimate)
            yield item

    def _admitted(
        self, turns: list[Item], recalled: Sequence[Item], query: RankingQuery, positions: dict[str, int]
    ) -> Iterable[Item]:
        """Turns and evidence in the order of packing."""
        if query.active is None:
            return sorted(recalled, key=place_of, reverse=True)
        if query.ranking is None:
            return reversed(turns)
        return self._ranked(turns, recalled, query.ranking, query.message, positions)

    def _ranked(
        self, turns: list[Item], recalled: Sequence[Item], ranking: Ranking, message: str, positions: dict[str, int]
    ) -> Iterator[Item]:
        count = len(turns)
        newest = newest_from(turns, self.ruleset.newest_turns)
        yield from reversed(turns[newest:])
        offered: Sequence[Item] = Joined(turns, recalled) if recalled else turns
        taken = {*range(newest, count)}
        for index in ranking.rank(message, offered):
            if index not in taken:
                taken.add(index)
                item = offered[index]
                if index < count:
                    positions[item.entity_id] = index
                yield item


def _over_budget(budget: int) -> Flag:
    detail = f"what must be shown takes more than the budget of {budget} tokens; it is shown in its shortest form"
    return Flag("UNSUPPRESSIBLE_OVER_BUDGET", detail)


def _pack_parts(
    state: ContextState, reach: Reach, turns: Iterable[PlacedItem], packer: Packer, limits: tuple[int, Collection[str]]
) -> list[PlacedItem]:
    """Packs the newest images and files of the intent's turns, oldest first in the result; each only with its turn.

    `limits` are how many there may be at most, and the media types that the model takes.
    """
    most, media_types = limits
    own, shown = {record.intent_id for record in reach.intents}, {turn_of(each.item) for each in turns if each.form == "FULL"}
    found: list[PlacedItem] = []
    for turn_id, brought in reversed([*state.parts.items()]):
        turn = state.turns.get(turn_id)
        if turn is None or turn.intent_id not in own:
            continue
        for event in reversed(brought[-(most - len(found)) :]):
            assert isinstance(event.facts, Brought)
            item = part_item(event, event.facts, turn.intent_id, state.estimate)
            if turn_id not in shown:
                found.append(PlacedItem(item, "NONE", 0, NOT_ADMITTED, max(0, item.tokens - packer.free)))
            elif accepts(media_types, event.facts.part.media_type):
                found.append(packer.pack(item))
            else:
                found.append(packer.stub(item, "UNSUPPORTED"))
        if len(found) >= most:
            break
    return found[::-1]


def _is_evidence(placed: PlacedItem) -> bool:
    return placed.item.kind == "evidence"


def _order_of(item: Item) -> tuple[int, tuple[str, str, str]]:
    return (item.tier, item.place)


def _order_of_placed(placed: PlacedItem) -> tuple[int, tuple[str, str, str]]:
    return (placed.item.tier, placed.item.place)
