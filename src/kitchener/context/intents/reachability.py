"""Finds the items that explicit edges connect to the active intent. Such an item is eligible if it is live.

A work order and a turn have an edge to their intent, and an intent has an edge to its parent. The walk goes from the active
intent up to the root. It passes through dead ancestors, whose items are not eligible, and stops at a deferred intent.
Similarity, age and order of mention are not edges.
"""

from typing import NamedTuple

from kitchener.context.fold.items import Item, Reasons, intent_item, newest_from, recalled
from kitchener.context.fold.lifecycle import IntentRecord, WorkOrderRecord
from kitchener.context.fold.state import ContextState
from kitchener.context.intents.active import ancestors
from kitchener.context.ruleset import Ruleset


class Reach(NamedTuple):
    """The live items that are connected to the active intent."""

    intents: tuple[IntentRecord, ...] = ()
    """The active intent and its live ancestors, nearest first."""
    deferred: IntentRecord | None = None
    """The deferred ancestor at which the walk stopped; eligible as a stub. None: there is none."""
    work_orders: tuple[WorkOrderRecord, ...] = ()
    """Open, deferred and failed work orders, in the order in which they were opened."""
    turns: list[Item] | None = None
    """Completed turns in order; None: no intent is active. The list may grow later, so note its length."""


def reach_from(state: ContextState, intent_id: str | None) -> Reach:
    """The live items connected to an intent; nothing if the intent is unknown or not live."""
    active = state.live_intents.get(intent_id) if intent_id is not None else None
    if active is None:
        return Reach()
    live, deferred = [active], None
    if active.facts.parent_id is not None:
        for record in ancestors(state.intents, active.intent_id):
            if record.status == "deferred":
                deferred = record
                break
            if record.is_live:
                live.append(record)
    names = tuple([record.intent_id for record in live])
    work = [record for name in names for record in state.attached(name).work_orders.values()]
    if len(names) > 1:
        work.sort(key=lambda record: record.opened.key)
    return Reach(tuple(live), deferred, tuple(work), state.turns_of(names))


def eligible(state: ContextState, intent_id: str | None) -> dict[str, Reasons]:
    """The reasons of all eligible items under an intent, by id, in the order of their tiers.

    For inspecting a whole session; a projection does not build it.
    """
    reach = reach_from(state, intent_id)
    headers = [*reach.intents, *([reach.deferred] if reach.deferred is not None else [])]
    items = [
        intent_item(
            record.declared,
            record.facts,
            record.last.ref,
            state.estimate,
            is_active=False,
            is_deferred=record is reach.deferred,
        )
        for record in headers
    ]
    items += [record.item(state.estimate) for record in reach.work_orders]
    items += reach.turns or ()
    items.sort(key=lambda item: (item.tier, *item.place))
    return {item.entity_id: item.reasons for item in items}


def recall_last_closed(state: ContextState, ruleset: Ruleset) -> tuple[Item, ...]:
    """The newest turns of the session's last closed intent, for a turn without an intent ("thanks, and good night")."""
    closed = state.last_closed
    if closed is None or state.intents[closed].status != "closed" or ruleset.newest_turns == 0:
        return ()
    turns = state.attached(closed).turns
    return tuple([recalled(item) for item in turns[newest_from(turns, ruleset.newest_turns) :]])
