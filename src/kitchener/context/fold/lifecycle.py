"""Defines the states of intents and work orders, and which events are invalid in each state.

The latest event decides. A failed work order stays live until it is superseded, abandoned or retired, because the next attempt
needs to know of the failure. A reopening makes an ended, deferred or failed entity live again. The fold that updates the
records is in `state.py`.
"""

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Literal, NamedTuple

from kitchener.context.fold import context_events as ev
from kitchener.context.fold.context_events import WO_CLOSED, WO_OPENED, SourceEvent
from kitchener.context.fold.items import Item, intent_item, work_order_item
from kitchener.records import events
from kitchener.records.entries import IntentCloser
from kitchener.records.ref import Ref
from kitchener.records.tokens import Estimator

IntentStatus = Literal["live", "deferred", "closed", "superseded", "abandoned", "retired"]
WorkOrderStatus = Literal["open", "deferred", "failed", "closed", "superseded", "abandoned", "retired"]


class IntentRecord:
    """The state of one intent after its events. Only the fold changes it."""

    __slots__ = ("_header", "declared", "facts", "fork", "intent_id", "last", "status", "superseded_by")

    def __init__(self, event: SourceEvent, facts: ev.Declared) -> None:
        self.intent_id = event.entity_id
        self.declared = event
        """The event `INTENT_DECLARED` with which the intent began."""
        self.facts = facts
        """The facts of the declaration."""
        self.last = event
        """The event that decides the status."""
        self.status: IntentStatus = "live"
        self.superseded_by: str | None = None
        """The intent that superseded it; None: it is not superseded."""
        self.fork: ev.Forked | None = None
        """The latest fork; None: it was not forked."""
        self._header: tuple[SourceEvent, Estimator, bool, Item] | None = None

    def apply(self, event: SourceEvent) -> None:
        """Applies a valid event after the declaration."""
        if isinstance(event.facts, ev.Forked):
            self.fork = event.facts
            return
        self.last, self.status = event, INTENT_STATUS[event.kind]
        self.superseded_by = event.facts.by if isinstance(event.facts, ev.Superseded) else None

    @property
    def closed_by(self) -> IntentCloser | None:
        """Who closed it; None: it is not closed, or its record does not tell."""
        facts = self.last.facts
        return facts.closed_by if self.status == "closed" and isinstance(facts, ev.Ended) else None

    @property
    def is_live(self) -> bool:
        """Whether it is live or deferred."""
        return self.status == "live" or self.status == "deferred"

    def is_declared_in(self, session_id: str | None) -> bool:
        """Whether a session declared it, whatever its scope; None stands for all sessions together."""
        owner = self.facts.session_id
        return owner is None or session_id is None or owner == session_id

    def is_own_of(self, session_id: str | None) -> bool:
        """Whether it is a SESSION intent of a session."""
        return not self.facts.is_shared and self.is_declared_in(session_id)

    def header(self, estimate: Estimator, *, is_active: bool) -> Item:
        """The intent as a header item. Cached until the next event, because every turn shows the same one."""
        kept = self._header
        if kept is not None and kept[0] is self.last and kept[1] is estimate and kept[2] is is_active:
            return kept[3]
        item = intent_item(self.declared, self.facts, self.last.ref, estimate, is_active=is_active)
        self._header = (self.last, estimate, is_active, item)
        return item


class WorkOrderRecord:
    """The state of one work order after its events. Only the fold changes it."""

    __slots__ = ("_item", "blocked_by", "detail", "evidence", "facts", "last", "opened", "status", "superseded_by", "wo_id")

    def __init__(self, event: SourceEvent, facts: ev.Opened) -> None:
        self.wo_id = event.entity_id
        self.opened = event
        """The first event."""
        self.facts = facts
        """The facts of the first event."""
        self.last = event
        """The event that decides the status."""
        self.status: WorkOrderStatus = "open"
        self.detail = ""
        """Why it failed, was deferred, superseded or abandoned; "": no reason was given."""
        self.blocked_by = facts.blocked_by
        """Ids of what it waits for, as its events name them."""
        self.evidence: tuple[Ref, ...] = ()
        """The entries that prove its result, as its end names them."""
        self.superseded_by: str | None = None
        self._item: Item | None = None

    @property
    def is_live(self) -> bool:
        """Whether it is open, deferred, or failed and not yet superseded, abandoned or retired."""
        return self.status in _LIVE_WORK

    def item(self, estimate: Estimator) -> Item:
        """The work order as an item. Made on first use, because most work orders end before a projection shows them."""
        if self._item is None:
            self._item = work_order_item(self.opened, self.facts, self.status, self.detail, self.last.ref, estimate)
        return self._item

    def become(self, status: WorkOrderStatus, event: SourceEvent, detail: str) -> None:
        """Sets the status that an event led to."""
        self.status, self.last, self.detail, self._item = status, event, detail, None
        self.evidence = event.facts.evidence if isinstance(event.facts, ev.Closed) else ()
        self.superseded_by = event.facts.by if isinstance(event.facts, ev.Superseded) else None


_LIVE_WORK = frozenset(("open", "deferred", "failed"))


class Attached:
    """Work orders and turns of one intent, which may be undeclared. Only the fold changes it."""

    __slots__ = ("failures_in_row", "turns", "work_orders")

    def __init__(self) -> None:
        self.work_orders: dict[str, WorkOrderRecord] = {}
        """The live work orders, in the order in which they were opened."""
        self.turns: list[Item] = []
        """The completed turns in order. Append-only; a rebuilt state has a new list."""
        self.failures_in_row = 0
        """Number of failed turns since the last successful one."""


class InvalidEvent(NamedTuple):
    """An event that contradicts earlier ones."""

    event: SourceEvent
    problem: str
    """The contradiction, for a reader."""


NOTHING = Attached()
"""Work orders and turns of an intent that has none."""


OF_INTENTS = frozenset(
    (
        events.INTENT_DECLARED,
        events.INTENT_SUPERSEDED,
        events.INTENT_REOPENED,
        events.INTENT_CLOSED,
        events.INTENT_ABANDONED,
        events.INTENT_RETIRED,
        events.INTENT_DEFERRED,
        events.INTENT_FORKED,
    )
)
OF_WORK_ORDERS = frozenset(
    (
        WO_OPENED,
        WO_CLOSED,
        events.WO_SUPERSEDED,
        events.WO_ABANDONED,
        events.WO_RETIRED,
        events.WO_DEFERRED,
        events.WO_REOPENED,
    )
)
INTENT_STATUS: Mapping[str, IntentStatus] = {
    events.INTENT_REOPENED: "live",
    events.INTENT_DEFERRED: "deferred",
    events.INTENT_CLOSED: "closed",
    events.INTENT_ABANDONED: "abandoned",
    events.INTENT_RETIRED: "retired",
    events.INTENT_SUPERSEDED: "superseded",
}
"""Kind of event to the status of the intent after it."""
WORK_ORDER_STATUS: Mapping[str, WorkOrderStatus] = {
    events.WO_REOPENED: "open",
    events.WO_DEFERRED: "deferred",
    WO_CLOSED: "closed",
    events.WO_SUPERSEDED: "superseded",
    events.WO_ABANDONED: "abandoned",
    events.WO_RETIRED: "retired",
}
"""Kind of event to the status of the work order after it; a failure is a `WO_CLOSED` of its own."""
_REOPENINGS, _REOPENED = (events.INTENT_REOPENED, events.WO_REOPENED), ("live", "open")
_AFTER_FAILURE = frozenset((events.WO_SUPERSEDED, events.WO_ABANDONED, events.WO_RETIRED, events.WO_REOPENED))


def lifecycle_problem(event: SourceEvent, records: Mapping[str, IntentRecord] | Mapping[str, WorkOrderRecord]) -> str | None:
    """Why an event contradicts the state of its intent or work order; None: it is valid.

    A superseding intent must be declared; a superseding work order may be unknown.
    """
    facts, entity_id, is_intent = event.facts, event.entity_id, event.kind in OF_INTENTS
    noun, begun = ("intent", "declared") if is_intent else ("work order", "opened")
    record = records.get(entity_id)
    if isinstance(facts, (ev.Declared, ev.Opened)):
        return None if record is None else f"{noun} {entity_id} was {begun} before"
    if record is None:
        return f"{noun} {entity_id} was never {begun}"
    if event.kind in _REOPENINGS:
        return f"{noun} {entity_id} is {record.status} and cannot be reopened" if record.status in _REOPENED else None
    if not record.is_live:
        return f"{noun} {entity_id} was {record.status} before"
    if record.status == "failed" and event.kind not in _AFTER_FAILURE:
        return f"{noun} {entity_id} has failed; it can only be superseded, abandoned, retired or reopened"
    if isinstance(facts, ev.Forked):
        unknown = [child for child in facts.children if child not in records]
        return f"{noun} {entity_id} forks into {unknown[0]}, which was never declared" if unknown else None
    if isinstance(facts, ev.Superseded):
        if is_intent and facts.by not in records:
            return f"{noun} {entity_id} is superseded by {facts.by}, which was never declared"
        return None if facts.by is None else _cycle(entity_id, facts.by, records)
    return None


def first_intent_problem(found: Iterable[SourceEvent], intents: Mapping[str, IntentRecord]) -> tuple[str, str] | None:
    """The intent and the problem of the first invalid event in a sequence of events of intents; None: all are valid."""
    after = dict(intents)
    for event in found:
        intent_id = event.entity_id
        problem = lifecycle_problem(event, after)
        if problem is not None:
            return intent_id, problem
        if isinstance(event.facts, ev.Declared):
            after[intent_id] = IntentRecord(event, event.facts)
        else:
            after[intent_id] = copy(after[intent_id])
            after[intent_id].apply(event)
    return None


def _cycle(entity_id: str, by: str, records: Mapping[str, IntentRecord] | Mapping[str, WorkOrderRecord]) -> str | None:
    """The cycle that a supersession would close; None: it closes none. Earlier supersessions contain no cycle."""
    if by == entity_id:
        return f"{entity_id} is superseded by itself"
    step: str | None = by
    while step is not None:
        found = records.get(step)
        step = found.superseded_by if found is not None else None
        if step == entity_id:
            return f"{entity_id} is superseded by {by}, which gave way to {entity_id}"
    return None
