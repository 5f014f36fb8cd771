"""Computes a recorded projection again from the same past. If the result differs, the record's lists are used.

If the settings have changed since, what was visible and why the rest was not come from the record, and only the sizes are
today's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from kitchener.actors.authority.agent_ruleset import ruleset_of
from kitchener.actors.authority.ranking import TurnRanking, TurnWords, words_under
from kitchener.actors.authority.subject_turns import SubjectView
from kitchener.config import HO2Config
from kitchener.context import (
    ContextState,
    Flag,
    Item,
    PlacedItem,
    Projection,
    ProjectionLists,
    Projector,
    Resolution,
    Ruleset,
    evidence_item,
    lists_of,
)
from kitchener.context import recalled as recalled_item
from kitchener.context.fold.items import TIER_RESULT, TIER_TURN, Reasons, recent
from kitchener.records import events
from kitchener.records.embedding import Similarity
from kitchener.records.entries import ProjectionPayload, TurnStartedPayload
from kitchener.records.ref import Ref

_HEAD_TIER: Final = 1


def rebuild(
    state: ContextState,
    config: HO2Config,
    payload: ProjectionPayload,
    lists: ProjectionLists,
    message: str,
    offered: Iterable[Item],
    *,
    begun: TurnStartedPayload | None = None,
    others: SubjectView | None = None,
) -> tuple[Projection, bool]:
    """The projection that a record is about, and whether making it again gave exactly what the record says.

    Args:
        state: as it was when it was made
        config: the settings of the agent class, as they are now
        payload: of `PROJECTION_COMPUTED`
        lists: what that says, written out
        message: of the turn
        offered: learned lines, results of tools and recalled evidence that it names
        begun: of the `TURN_STARTED` of the turn, with the version of its rules and what its model takes; None: it is not known
        others: the subject's turns that the turn could recall; None: only those that it names are known
    """
    version = begun.get("policy_version", 1) if begun is not None else events.POLICY_VERSION
    biases = [item for item in offered if item.kind == "bias"]
    recalled = [item for item in offered if item.kind == "evidence"]
    ruleset = ruleset_of(config, payload["ruleset_hash"], version)
    ruleset = replace(ruleset, prompt_layout="chat" if "history" in payload else "block")
    budget = int(payload["token_budget"])
    ranking = TurnRanking(ruleset)
    if ruleset.recall_scope != "subject":
        ranking.follow(state, None)
    else:  # where the named turns alone rank otherwise, the record counts
        ranking.follow(state, (others.words, others.known) if others is not None else _words(state, recalled, ruleset))
    if (scores := payload.get("similarity")) is not None:
        ranking.similar = Similarity.from_mapping(scores)
    projector = Projector(ruleset)
    again = projector.project(
        state,
        Resolution(payload["intent_id"], None, (), _flags(payload)),
        message=message,
        ranking=ranking,
        biases=biases,
        recalled=recalled,
        results=[item for item in offered if item.kind == "tool_result"],
        tokens_left=budget + ruleset.reply_reserve,
        mode=payload["mode"],
        media_types=begun.get("media_types", ()) if begun is not None else (),
        turn_ts=payload["timestamp"],
        resumed_id=_resumed_id(begun),
    )
    if (again.token_budget, again.tokens_used, lists_of(again)[:3]) == (budget, payload["tokens_used"], lists[:3]):
        return again, True
    known = {item.ref: item for item in (*again.eligible(), *again.recalled, *state.turns.values())}
    return _as_recorded(payload, lists, known, again.flags), False


def _resumed_id(begun: TurnStartedPayload | None) -> str | None:
    """The deferred work order that a turn continued; None: it continued none, or its start is not known."""
    resumes = begun.get("resumes") if begun is not None else None
    return resumes["wo_id"] if resumes is not None else None


def _words(state: ContextState, recalled: Iterable[Item], ruleset: Ruleset) -> tuple[TurnWords, int]:
    """The words of the session's turns and of those that were recalled, in the order of the ledger."""
    words = words_under(ruleset)
    known = {item.entity_id: item for item in (*recalled, *state.turn_list)}
    for item in sorted(known.values(), key=lambda each: each.place):
        words.note(item)
    return words, len(words.turns)


def _as_recorded(
    payload: ProjectionPayload, lists: ProjectionLists, known: Mapping[Ref, Item], flags: tuple[Flag, ...]
) -> Projection:
    """The projection as the lists say, with the items as they would be made today."""
    visible, reasons = set(lists.visible), dict(lists.suppressed)
    free = int(payload["token_budget"]) - int(payload["tokens_used"])

    def item_of(ref: Ref) -> Item:
        why = lists.why(ref)
        item = known.get(ref) or _lost(ref, why)
        return recalled_item(item) if "RECALLED" in why else recent(item) if "RECENT" in why else item

    def place(item: Item) -> PlacedItem:
        if item.ref in visible:
            return PlacedItem(item, "FULL", item.tokens)
        reason = reasons.get(item.ref, "LOW_URGENCY")
        return PlacedItem(item, "STUB" if reason in ("DEFERRED", "ERASED") else "NONE", 0, reason, max(0, item.tokens - free))

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
        tuple([place(item) for item in eligible if item.tier != TIER_TURN]),
        None,
        turns,
        len(turns),
        tuple(recalled),
        tuple([each for each in placed if each.reason != "LOW_URGENCY"]),
        flags,
        payload["ruleset_hash"],
    )


def _lost(ref: Ref, why: Reasons) -> Item:
    """An item that can no longer be rebuilt, such as a changed rule or a missing entry. Only its name is known."""
    item = evidence_item(ref.entry_id, ref, "", f"({ref.entry_id} as it was then)", lambda _: 0)
    if "RECALLED" in why or "RECENT" in why:
        return item
    if "TOOL_RESULT" in why:
        return item._replace(kind="tool_result", tier=TIER_RESULT, reasons=("TOOL_RESULT", "REACHABLE_FROM_INTENT"))
    return item._replace(kind="rule", tier=_HEAD_TIER, reasons=why)


def _flags(payload: ProjectionPayload) -> tuple[Flag, ...]:
    found = []
    for flag in payload["flags"]:
        details = flag["details_ref"]
        found.append(Flag(flag["kind"], flag["kind"], Ref.from_mapping(details) if details is not None else None))
    # Making it again raises this one again.
    return tuple(flag for flag in found if flag.kind != "UNSUPPRESSIBLE_OVER_BUDGET")
