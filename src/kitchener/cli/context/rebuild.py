"""A recorded projection as a `Projection` again, item by item.

Made a second time from the same past it is the same, with every size. Where the settings have changed since, it is not; then
the record still says what was visible, and why the rest was not, and only the sizes are today's.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kitchener.actors.authority.authority import ruleset_of
from kitchener.actors.authority.ranking import TurnRanking, TurnWords
from kitchener.config import HO2Config
from kitchener.context import (
    ContextState,
    Flag,
    Item,
    Placed,
    Projection,
    ProjectionLists,
    Projector,
    Resolution,
    Ruleset,
    evidence_item,
    lists_of,
)
from kitchener.context.fold.items import TIER_TURN
from kitchener.records.ref import Ref

_HEAD_TIER: Final = 1


def rebuild(
    state: ContextState,
    config: HO2Config,
    payload: Mapping[str, Any],
    lists: ProjectionLists,
    message: str,
    offered: Iterable[Item],
) -> tuple[Projection, bool]:
    """The projection that a record is about, and whether making it again gave exactly what the record says.

    Args:
        state: as it was when it was made
        config: the settings of the agent class, as they are now
        payload: of `PROJECTION_COMPUTED`
        lists: what that says, written out
        message: of the turn
        offered: learned lines and recalled evidence that it names
    """
    biases = [item for item in offered if item.kind == "bias"]
    recalled = [item for item in offered if item.kind == "evidence"]
    ruleset, budget = ruleset_of(config, payload["ruleset_hash"]), int(payload["token_budget"])
    ranking = TurnRanking(ruleset)
    # Of the subject's other turns only those are at hand that were offered; where that ranks otherwise, the record counts.
    ranking.follow(state, _words(state, recalled, ruleset) if ruleset.recall_scope == "subject" else None)
    projector = Projector(ruleset, rank=ranking.rank)
    again = projector.project(
        state,
        Resolution(payload["intent_id"], None, (), _flags(payload)),
        message=message,
        biases=biases,
        recalled=recalled,
        tokens_left=budget + ruleset.reply_reserve,
        mode=payload["mode"],
    )
    if (again.token_budget, again.tokens_used, lists_of(again)[:3]) == (budget, payload["tokens_used"], lists[:3]):
        return again, True
    known = {item.ref: item for item in (*again.eligible(), *again.recalled, *state.turns.values())}
    return _as_recorded(payload, lists, known, again.flags), False


def _words(state: ContextState, recalled: Iterable[Item], ruleset: Ruleset) -> tuple[TurnWords, int]:
    """The words of the session's turns and of those that were recalled, in the order of the ledger."""
    words = TurnWords(ruleset.ranking_postings)
    known = {item.entity_id: item for item in (*recalled, *state.turn_list)}
    for item in sorted(known.values(), key=lambda each: each.place):
        words.note(item)
    return words, len(words.turns)


def _as_recorded(
    payload: Mapping[str, Any], lists: ProjectionLists, known: Mapping[Ref, Item], flags: tuple[Flag, ...]
) -> Projection:
    """The projection as the lists say, with the items as they would be made today."""
    visible, reasons = set(lists.visible), dict(lists.suppressed)
    free = int(payload["token_budget"]) - int(payload["tokens_used"])

    def item_of(ref: Ref) -> Item:
        why = lists.reasons.get(f"{ref.ledger_id}/{ref.entry_id}", ())
        item = known.get(ref) or _lost(ref, why)
        return item._replace(kind="evidence", reasons=("RECALLED",)) if "RECALLED" in why else item

    def place(item: Item) -> Placed:
        if item.ref in visible:
            return Placed(item, "FULL", item.tokens)
        reason: Any = reasons.get(item.ref, "LOW_URGENCY")
        return Placed(item, "STUB" if reason in ("DEFERRED", "ERASED") else "NONE", 0, reason, max(0, item.tokens - free))

    eligible = [item_of(ref) for ref in lists.eligible]
    own = set(lists.eligible)
    recalled = [item_of(ref) for ref in (*lists.visible, *reasons) if ref not in own]
    turns = [item for item in eligible if item.tier == TIER_TURN]
    placed = [place(item) for item in (*turns, *recalled)]
    return Projection(
        payload["intent_id"],
        payload["mode"],
        int(payload["token_budget"]),
        int(payload["tokens_used"]),
        tuple([place(item) for item in eligible if item.tier < TIER_TURN]),
        None,
        turns,
        len(turns),
        tuple(recalled),
        tuple([each for each in placed if each.reason != "LOW_URGENCY"]),
        flags,
        payload["ruleset_hash"],
    )


def _lost(ref: Ref, why: Iterable[str]) -> Item:
    """Something that cannot be made any more: a rule that was changed, an entry that is gone. Its name is all there is."""
    item = evidence_item(ref.entry_id, ref, "", f"({ref.entry_id} as it was then)", lambda _: 0)
    if "RECALLED" in why:
        return item
    return item._replace(kind="rule", tier=_HEAD_TIER, reasons=tuple(why))  # type: ignore[arg-type]  # as they were recorded


def _flags(payload: Mapping[str, Any]) -> tuple[Flag, ...]:
    found = []
    for flag in payload["flags"]:
        details = flag["details_ref"]
        found.append(Flag(flag["kind"], flag["kind"], Ref.from_mapping(details) if details is not None else None))
    # Making it again raises this one again.
    return tuple(flag for flag in found if flag.kind != "UNSUPPRESSIBLE_OVER_BUDGET")
