"""Folds events, one at a time, into the set of live items.

The latest event of an entity decides. An event that contradicts earlier ones (`lifecycle.py`) changes nothing; it is kept in
`invalid` until a `LIFECYCLE_VOIDED` names it. This module does not know which intent is active (`active.py`), what is
connected to it (`reachability.py`) or what is shown (`projection.py`).
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kitchener.context.fold import context_events as ev
from kitchener.context.fold.chat_messages import HistoryItems
from kitchener.context.fold.context_events import SourceEvent
from kitchener.context.fold.items import Item, place_of, said_item, turn_item, turn_items
from kitchener.context.fold.lifecycle import (
    NOTHING,
    OF_INTENTS,
    OF_WORK_ORDERS,
    WORK_ORDER_STATUS,
    Attached,
    IntentRecord,
    InvalidEvent,
    WorkOrderRecord,
    lifecycle_problem,
)
from kitchener.records.entries import ERASED
from kitchener.records.events import LIFECYCLE_VOIDED, MESSAGE_IMPORTED, TURN_COMPLETED
from kitchener.records.ref import Ref
from kitchener.records.spoken import with_attached
from kitchener.records.tokens import Estimator


class FoldedEvents:
    """The state after a sequence of events, applied in order.

    Args:
        estimate: counts the tokens of turns and work orders
        session_id: the session; None: all intents belong together
        is_split: whether a turn's message and reply are two items
    """

    def __init__(self, estimate: Estimator, session_id: str | None, *, is_split: bool) -> None:
        self.estimate, self.session_id, self.is_split = estimate, session_id, is_split
        self.intents: dict[str, IntentRecord] = {}
        self.live_intents: dict[str, IntentRecord] = {}
        self.work_orders: dict[str, WorkOrderRecord] = {}
        self.turns: dict[str, Item] = {}
        self.turn_list: list[Item] = []
        self.attached: dict[str, Attached] = {}
        self.unattached: list[Item] = []
        """The completed turns that belong to no intent."""
        self.asked: dict[str, SourceEvent] = {}
        """The events that began the open turns, by turn id."""
        self.parts: dict[str, list[SourceEvent]] = {}
        """The images and files of turns that have some, by turn id, in the order of their messages."""
        self.invalid: dict[Ref, InvalidEvent] = {}
        self.last_closed: str | None = None
        self.has_erased = False
        self._merged: tuple[tuple[str, ...], list[int], list[Item]] | None = None

    def step(self, event: SourceEvent) -> None:
        """Applies an event that is later than all events before it."""
        problem = self.problem(event)
        if problem is not None:
            self.invalid[event.ref] = InvalidEvent(event, problem)
        elif event.kind in OF_INTENTS:
            self._step_intent(event)
        elif event.kind in OF_WORK_ORDERS:
            self._step_work_order(event)
        elif isinstance(event.facts, ev.Asked):
            if event.facts.message is None:
                self.asked.pop(event.entity_id, None)
                self.parts.pop(event.entity_id, None)
            else:
                self.asked[event.entity_id] = event
        elif isinstance(event.facts, ev.Answered):
            self._step_turn(event, event.facts)
        elif isinstance(event.facts, ev.Brought):
            self._step_part(event, event.facts)
        elif isinstance(event.facts, ev.Said):
            self._step_said(said_item(event, event.facts, self.estimate))

    def _step_intent(self, event: SourceEvent) -> None:
        facts, intent_id = event.facts, event.entity_id
        if isinstance(facts, ev.Declared):
            self.intents[intent_id] = self.live_intents[intent_id] = IntentRecord(event, facts)
            self.has_erased = self.has_erased or facts.objective is ERASED
            if facts.adopts_turns:
                self._adopt(intent_id)
            return
        record = self.intents[intent_id]
        record.apply(event)
        if isinstance(facts, ev.Forked):
            return
        if record.is_live:
            self.live_intents[intent_id] = record
            return
        self.live_intents.pop(intent_id, None)
        if record.status == "closed" and record.is_own_of(self.session_id):
            self.last_closed = intent_id

    def _adopt(self, intent_id: str) -> None:
        mine = [item for item in self.unattached if self.session_id is None or item.session_id in (None, self.session_id)]
        if mine:
            adopted = [item._replace(intent_id=intent_id) for item in mine]
            taken = {item.entity_id for item in adopted}
            self.unattached = [item for item in self.unattached if item.entity_id not in taken]
            self.turns.update((item.entity_id, item) for item in adopted)
            attached = self._attached_to(intent_id)
            attached.turns = sorted((*attached.turns, *adopted), key=place_of)
            self._merged = None

    def _step_work_order(self, event: SourceEvent) -> None:
        facts, wo_id = event.facts, event.entity_id
        if isinstance(facts, ev.Opened):
            record = self.work_orders[wo_id] = WorkOrderRecord(event, facts)
            if facts.intent_id is not None:
                self._attached_to(facts.intent_id).work_orders[wo_id] = record
            return
        record = self.work_orders[wo_id]
        if isinstance(facts, ev.Closed):
            record.become("failed" if facts.is_failed else "closed", event, facts.detail)
        elif isinstance(facts, ev.Deferred | ev.Superseded | ev.Ended):
            record.become(WORK_ORDER_STATUS[event.kind], event, facts.detail)
            if isinstance(facts, ev.Deferred):
                record.blocked_by = facts.blocked_by or record.blocked_by
        if record.facts.intent_id is None:
            return
        attached = self._attached_to(record.facts.intent_id)
        if not record.is_live:
            attached.work_orders.pop(wo_id, None)
        elif wo_id not in attached.work_orders:  # it was reopened: back to its place among those opened before and after it
            found = sorted([*attached.work_orders.values(), record], key=lambda each: each.opened.key)
            attached.work_orders = {each.wo_id: each for each in found}

    def _step_turn(self, event: SourceEvent, facts: ev.Answered) -> None:
        asked = self.asked.pop(event.entity_id, None)
        items = self._items_of(event, facts, asked)
        self.turns.update([(item.entity_id, item) for item in items])
        self.has_erased = self.has_erased or items[0].is_erased
        self.turn_list += items
        if facts.intent_id is None:
            if facts.is_failed is not None:  # a turn in which the Authority asked the user belongs to no intent
                self.unattached += items
            return
        attached = self._attached_to(facts.intent_id)
        attached.turns += items
        if facts.is_failed is not None:
            attached.failures_in_row = attached.failures_in_row + 1 if facts.is_failed else 0

    def _step_said(self, item: Item) -> None:
        self.turns[item.entity_id] = item
        self.has_erased = self.has_erased or item.is_erased
        self.turn_list.append(item)
        self.unattached.append(item)

    def _step_part(self, event: SourceEvent, facts: ev.Brought) -> None:
        began = self.asked.get(facts.turn_id)
        if began is None or not isinstance(began.facts, ev.Asked):
            return
        message = began.facts.message
        if message is None or message is ERASED:
            return
        self.asked[facts.turn_id] = began._replace(facts=began.facts._replace(message=with_attached(message, facts.part)))
        self.parts.setdefault(facts.turn_id, []).append(event)

    def _items_of(self, event: SourceEvent, facts: ev.Answered, asked: SourceEvent | None) -> tuple[Item, ...]:
        found = turn_items(event, facts, asked, self.estimate) if self.is_split and facts.message is None else None
        if found is not None:
            return found
        said = asked.facts if asked is not None and isinstance(asked.facts, ev.Asked) else ev.Asked(None)
        if facts.message is not None:
            said = ev.Asked(facts.message)
        return (turn_item(event, facts, said, facts.intent_id, self.estimate),)

    def _attached_to(self, intent_id: str) -> Attached:
        attached = self.attached.get(intent_id)
        if attached is None:
            attached = self.attached[intent_id] = Attached()
        return attached

    def problem(self, event: SourceEvent) -> str | None:
        """Why the event contradicts the events before it; None: it does not."""
        if event.kind in OF_WORK_ORDERS:
            return lifecycle_problem(event, self.work_orders)
        if event.kind in OF_INTENTS:
            return lifecycle_problem(event, self.intents)
        if event.kind in (TURN_COMPLETED, MESSAGE_IMPORTED) and event.entity_id in self.turns:
            return f"turn {event.entity_id} was completed before"
        return None

    def turns_of(self, intent_ids: tuple[str, ...]) -> list[Item]:
        """The turns of these intents, oldest first. Every call returns the same append-only list."""
        lists = [found.turns for each in intent_ids if (found := self.attached.get(each)) and found.turns]
        if not lists:
            return []
        return lists[0] if len(lists) == 1 else self._merge(intent_ids, lists)

    def _merge(self, intent_ids: tuple[str, ...], lists: list[list[Item]]) -> list[Item]:
        if self._merged is None or self._merged[0] != intent_ids or len(self._merged[1]) != len(lists):
            self._merged = (intent_ids, [0] * len(lists), [])
        _, seen, merged = self._merged
        fresh = [item for n, turns in enumerate(lists) for item in turns[seen[n] :]]
        if fresh:
            fresh.sort(key=place_of)
            merged += fresh
            seen[:] = [len(turns) for turns in lists]
        return merged

    def snapshot(self) -> dict[str, object]:
        """The whole state as plain values."""
        return {
            "intents": {
                key: (each.declared, each.last, each.status, each.superseded_by, each.fork)
                for key, each in self.intents.items()
            },
            "live_intents": sorted(self.live_intents),
            "work_orders": {
                key: (each.opened, each.last, each.status, each.detail, each.blocked_by, each.evidence, each.superseded_by)
                for key, each in self.work_orders.items()
            },
            "turns": dict(self.turns),
            "attached": {
                key: (list(each.work_orders), list(each.turns), each.failures_in_row) for key, each in self.attached.items()
            },
            "unattached": list(self.unattached),
            "asked": dict(self.asked),
            "parts": {key: list(each) for key, each in self.parts.items()},
            "invalid": list(self.invalid.values()),
            "last_closed": self.last_closed,
        }


class ContextState:
    """The state that the events of a session lead to. Equal sets of events give equal states, in any order.

    The cost of `apply` does not grow with the number of earlier events. An event that arrives late is inserted in order, and
    the next access folds all events again.

    Args:
        estimate: counts the tokens of turns and work orders
        session_id: the session; intents of other sessions never compete. None: all intents belong together
        is_split: whether a turn's message and reply are two items, if its message has its own entry
    """

    def __init__(self, estimate: Estimator, session_id: str | None = None, *, is_split: bool = False) -> None:
        self.estimate = estimate
        self.session_id = session_id
        self.is_split = is_split
        self.history = HistoryItems(estimate)
        """The turns as chat messages show them."""
        self._log: list[SourceEvent] = []
        self._newest: ev.EventKey = ("", "", "")
        self._voided: set[Ref] = set()
        self._folded = FoldedEvents(estimate, session_id, is_split=is_split)
        self._is_stale = False

    def apply(self, event: SourceEvent) -> None:
        """Applies one event. A repeated event changes nothing."""
        key = event.key
        if key > self._newest:
            self._newest = key
            self._log.append(event)
            if not self._is_stale:
                self._step(event)
        else:
            position = bisect_left(self._log, key, key=_key_of)
            if self._log[position : position + 1] and self._log[position].key == key:
                return
            self._log.insert(position, event)
            if not self._is_stale and self._commutes(event, position):
                self._step(event)
            else:
                self._is_stale = True
        if isinstance(event.facts, ev.Voided):
            self._void(event.facts.target)

    def _commutes(self, event: SourceEvent, position: int) -> bool:
        """Whether a late event gives the same state if it is applied after the events that follow it in order.

        True for an intent that another session has just changed, because no turn and no work order depends on it.
        """
        if event.kind not in OF_INTENTS or (isinstance(event.facts, ev.Declared) and event.facts.adopts_turns):
            return False
        later = self._log[position + 1 :]
        return not any(each.kind in _ORDERED for each in later) and self._folded.problem(event) is None

    def _void(self, target: Ref) -> None:
        if target in self._voided:
            return
        self._voided.add(target)
        # An invalid event had no effect. Without an event that had one, everything must be folded again.
        if self._folded.invalid.pop(target, None) is None:
            self._is_stale = True

    def _step(self, event: SourceEvent) -> None:
        if not self._voided or event.ref not in self._voided:
            self._folded.step(event)

    def _settled(self) -> FoldedEvents:
        """The fold of all events. Folds them again if one arrived late."""
        if self._is_stale:
            self._is_stale = False
            self._folded = FoldedEvents(self.estimate, self.session_id, is_split=self.is_split)
            for event in self._log:
                self._step(event)
        return self._folded

    @property
    def intents(self) -> Mapping[str, IntentRecord]:
        """All declared intents, by id."""
        return self._settled().intents

    @property
    def live_intents(self) -> Mapping[str, IntentRecord]:
        """The live and deferred intents, by id."""
        return self._settled().live_intents

    @property
    def work_orders(self) -> Mapping[str, WorkOrderRecord]:
        return self._settled().work_orders

    @property
    def turns(self) -> Mapping[str, Item]:
        """The items of all completed turns, by id. A turn's id names its reply, or the whole turn if it is one item."""
        return self._settled().turns

    @property
    def turn_list(self) -> Sequence[Item]:
        """The items of all completed turns, oldest first, with the intents of their completion; `turns` has later adoptions.

        The same append-only list until a late event. Do not change it.
        """
        return self._settled().turn_list

    @property
    def parts(self) -> Mapping[str, Sequence[SourceEvent]]:
        """The images and files of turns that have some, by turn id, in the order of the turns' messages."""
        return self._settled().parts

    @property
    def has_unattached(self) -> bool:
        """Whether a completed turn belongs to no intent, e.g. because the Authority was off."""
        return bool(self._settled().unattached)

    @property
    def invalid(self) -> Mapping[Ref, InvalidEvent]:
        """Invalid events that were not voided, oldest first."""
        return self._settled().invalid

    @property
    def has_erased(self) -> bool:
        """Whether the text of a turn or an intent was erased."""
        return self._settled().has_erased

    @property
    def last_closed(self) -> str | None:
        """The session's intent that was closed last, even if it was reopened since; None: none was closed."""
        return self._settled().last_closed

    def attached(self, intent_id: str | None) -> Attached:
        """The work orders and turns of an intent."""
        return NOTHING if intent_id is None else self._settled().attached.get(intent_id, NOTHING)

    def turns_of(self, intent_ids: tuple[str, ...]) -> list[Item]:
        """The turns of these intents, oldest first. The same append-only list until a late event. Do not change it."""
        return self._settled().turns_of(intent_ids)

    def find_entry(self, entry_id: str) -> SourceEvent | None:
        """The event of an entry, voided or not; None: no event has this entry. A linear search."""
        return next((event for event in self._log if event.ref.entry_id == entry_id), None)

    def snapshot(self) -> dict[str, object]:
        """The whole state as plain values. Equal states have equal snapshots."""
        return self._settled().snapshot()


_ORDERED: Final = OF_INTENTS | {LIFECYCLE_VOIDED}
"""Kinds of events whose order relative to an intent's event matters."""


def fold(
    events: Iterable[SourceEvent], estimate: Estimator, session_id: str | None = None, *, is_split: bool = False
) -> ContextState:
    """The state that these events lead to."""
    state = ContextState(estimate, session_id, is_split=is_split)
    for event in events:
        state.apply(event)
    return state


def _key_of(event: SourceEvent) -> ev.EventKey:
    return event.key
