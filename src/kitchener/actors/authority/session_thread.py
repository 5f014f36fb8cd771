"""Folds the entries of one session into the state that the Context Authority decides on.

Entries are applied when they are written or read back. A projection is recorded as a change of the last one of its intent, or
of the session's last one; reading back applies the changes in the order of the ledger, so one pass over the projections is
enough. The Authority (`authority.py`) decides; this module does not.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeVar

import anyio.lowlevel

from kitchener.actors.authority.ranking import TurnRanking
from kitchener.context import BaseProjection, ContextState, Projection, Ruleset, make_event, read_base, resolve_active
from kitchener.context.fold.context_events import Answered, Asked, Brought, Facts, Opened, Said
from kitchener.context.projection.record import as_shown, read_recalled
from kitchener.context.projection.ref_lists import apply_edits, positions_of, read_refs
from kitchener.ledger import ReadableLedger, StoredEntry
from kitchener.logs import get_logger
from kitchener.plain_names import origin_of
from kitchener.records import events
from kitchener.records.entries import AddedRefs, ProjectionPayload, Runs, ShadowDecisionPayload, opened, payload_as
from kitchener.records.ref import Ref

logger = get_logger(__name__)

_OF_A_TURN: Final = (events.WO_PLANNED, events.TURN_COMPLETED)
_LEAVES: Final = (
    events.INTENT_SUPERSEDED,
    events.INTENT_CLOSED,
    events.INTENT_ABANDONED,
    events.INTENT_RETIRED,
    events.INTENT_DEFERRED,
)
_APPLIED_AT_ONCE: Final = 128
"""Entries that are applied at a time, before other tasks run."""
_EVENT_CHARS: Final = 100
"""Characters counted for each event besides its texts, for its names, its references and its part of the tables."""


class SessionThread:
    """The Authority's state of one active session. Owned by its `SessionManager`.

    Args:
        state: the fold of the session's entries
        ruleset: the policy
        is_shadow: whether a turn without a recorded intent, and its work orders, belong to the shadow's intent
    """

    __slots__ = (
        "_ruleset",
        "bases",
        "held_chars",
        "intent_id",
        "is_shadow",
        "last_left",
        "media_types",
        "projection",
        "ranking",
        "resumed_id",
        "shared_to",
        "state",
    )

    def __init__(self, state: ContextState, ruleset: Ruleset, *, is_shadow: bool) -> None:
        self.state = state
        self._ruleset = ruleset
        self.is_shadow = is_shadow
        self.bases: dict[str | None, BaseProjection] = {}
        """The last recorded projection of each intent, the session's last one at the end."""
        self.intent_id: str | None = None
        """The intent of the running turn; None without an active intent."""
        self.last_left: str | None = None
        """The intent that ended or was deferred most recently; None if there is none."""
        self.media_types: Sequence[str] = ()
        """The types of images and files that the running turn's model takes; empty: it takes none, or the session has none."""
        self.projection: Projection | None = None
        """The projection of the running turn; None before it is computed."""
        self.resumed_id: str | None = None
        """The deferred work order that the running turn continues; None: it continues none."""
        self.ranking = TurnRanking(ruleset)
        self.held_chars = 0
        """The characters of all events that the state keeps, for the bound `max_active_chars`."""
        self.shared_to = 0
        """Position in HO2m up to which other sessions' entries about shared intents were applied."""

    @property
    def prior_intent_id(self) -> str | None:
        """The intent that was left last, which a message may reopen; None if it is live again or there is none."""
        record = self.state.intents.get(self.last_left or "")
        return self.last_left if record is not None and record.status != "live" else None

    def bases_for(self, intent_id: str | None) -> list[BaseProjection]:
        """The projections of which the next one of an intent may be recorded as a change."""
        return _last_of(self.bases, intent_id)

    def keep_base(self, intent_id: str | None, base: BaseProjection) -> None:
        """Keeps a projection that was just recorded, for `bases_for`."""
        self.bases.pop(intent_id, None)
        self.bases[intent_id] = base
        for old in islice(reversed(self.bases), _MOST_SHOWN, _MOST_SHOWN + 1):
            self.bases[old] = self.bases[old]._replace(shown=())

    def apply(self, entry_type: str, entity_id: str, timestamp: str, payload: Mapping[str, object], ref: Ref) -> None:
        """Applies an entry of the session when it is written or read back."""
        if self.is_shadow and entry_type in _OF_A_TURN and payload.get("intent_id") is None:
            payload = {**payload, "intent_id": self.intent_id}
        event = make_event(entry_type, entity_id, timestamp, payload, ref)
        if event is None:
            return
        self.state.apply(event)
        self.held_chars += _EVENT_CHARS if entry_type == events.WO_COMPLETED else _EVENT_CHARS + _chars_of(event.facts)
        if entry_type in _LEAVES and ref not in self.state.invalid:
            self.last_left = event.entity_id
        elif entry_type == events.TURN_STARTED and self.is_shadow:
            self.intent_id = resolve_active(self.state, self._ruleset).active

    def apply_decision(self, decision: ShadowDecisionPayload, timestamp: str, ref: Ref) -> None:
        """Applies a decision of the shadow when it is written or read back."""
        for number, each in enumerate(opened(decision.get("events")) or ()):  # sealed if the subject was erased
            self.apply(each["entry_type"], each["entity_id"], timestamp, each["payload"], _part(ref, number))
        self.intent_id = decision.get("intent_id")

    async def read_back(self, session_id: str, entries: Iterable[StoredEntry], context: ReadableLedger) -> None:
        """Applies a session's recorded entries, by the same fold as when they were written. Call it on a new thread.

        Args:
            session_id: the session
            entries: the session's entries in HO2m, in order
            context: the ledger with the recorded decisions
        """
        projections = _RecordedProjections()
        decided: dict[str, list[StoredEntry]] = {}
        async for entry in context.read(session_id=session_id):
            if entry.entry_type == events.PROJECTION_COMPUTED:
                projections.read(entry)
            elif entry.entry_type == events.INTENT_SHADOW_DECISION and self.is_shadow:
                decided.setdefault(payload_as(ShadowDecisionPayload, entry.payload).get("decided_after", ""), []).append(entry)
        for number, entry in enumerate(entries, 1):
            if number % _APPLIED_AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()
            payload = events.read_payload(entry.entry_type, entry.payload)
            self.apply(entry.entry_type, entry.entity_id, entry.timestamp, payload, entry.ref)
            for decision in decided.get(entry.entry_id, ()):
                self.apply_decision(events.read_as(ShadowDecisionPayload, decision), decision.timestamp, decision.ref)
        self.bases = projections.bases()


def _chars_of(facts: Facts) -> int:
    """Returns the number of characters in an event's facts. The first three kinds come first, because every turn has them."""
    if isinstance(facts, Asked):
        return len(facts.message or "") + len(facts.speaker or "")
    if isinstance(facts, Answered):
        return len(facts.response) + len(facts.message or "")
    if isinstance(facts, Said):
        return len(facts.text) + len(facts.speaker or "")
    if isinstance(facts, Brought):
        return len(facts.part.name)
    if isinstance(facts, Opened) and not (facts.targets or facts.acceptance):
        return 0
    return sum([len(each) if isinstance(each, str) else sum(map(len, each)) for each in facts if isinstance(each, str | tuple)])


def _part(ref: Ref, number: int) -> Ref:
    """Returns the reference of one event inside the entry of a shadow decision."""
    return Ref(ref.ledger_id, f"{ref.entry_id}.{number:02d}", ref.entry_hash)


_MOST_SHOWN: Final = 8
"""Of so many intents, the newest, it is kept what their last projections showed."""
_Projected = TypeVar("_Projected", BaseProjection, "_RecordedBase")


def _last_of(kept: dict[str | None, _Projected], intent_id: str | None) -> list[_Projected]:
    """The last projection of an intent and the session's last one, if there are any; one of them if they are the same."""
    last = next(reversed(kept), None)
    return [kept[each] for each in dict.fromkeys((intent_id, last)) if each in kept]


class _RecordedBase(NamedTuple):
    """A recorded projection."""

    ref: Ref
    eligible: list[Ref]
    """All its eligible items, perhaps followed by those that a later projection of its intent added."""
    visible: Runs
    """The positions of those that it showed in full."""
    recalled: tuple[Ref, ...]
    """The recalled items that it showed in full."""

    def shown(self) -> tuple[Ref, ...]:
        """All that it showed in full, as a later projection refers to it."""
        visible = positions_of(self.visible, len(self.eligible))
        return as_shown([*[self.eligible[n] for n in visible], *self.recalled])


class _RecordedProjections:
    """The last projection of each intent. Reads projections in the order of the ledger."""

    def __init__(self) -> None:
        self._last: dict[str | None, _RecordedBase] = {}

    def read(self, entry: StoredEntry) -> None:
        """Reads a `PROJECTION_COMPUTED` entry. If its edits do not apply, it is no base of later ones."""
        payload = events.read_as(ProjectionPayload, entry)
        intent_id = payload.get("intent_id")
        before = _last_of(self._last, intent_id)
        own = self._last.pop(intent_id, None)
        try:
            self._last[intent_id] = self._read(entry.ref, payload, before, own)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            logger.warning("projection cannot be followed", entry_id=entry.entry_id, error=origin_of(error))

    def bases(self) -> dict[str | None, BaseProjection]:
        """The last projection of each intent, as a base for the next one; the session's last one at the end."""
        found: dict[str | None, BaseProjection] = {}
        for number, (intent_id, last) in enumerate(self._last.items()):
            is_newest = number >= len(self._last) - _MOST_SHOWN
            try:
                found[intent_id] = BaseProjection(last.ref, tuple(last.eligible), shown=last.shown() if is_newest else ())
            except (TypeError, ValueError) as error:
                logger.warning("projection cannot be followed", entry_id=last.ref.entry_id, error=origin_of(error))
        return found

    def _read(
        self, ref: Ref, payload: ProjectionPayload, before: Iterable[_RecordedBase], own: _RecordedBase | None
    ) -> _RecordedBase:
        eligible, visible = payload["eligible_refs"], payload["visible_refs"]
        if isinstance(eligible, list) or isinstance(visible, list):
            lists = read_base(payload)
            return _RecordedBase(ref, list(lists.eligible), [], lists.visible)
        if "base" not in eligible:
            edited = list(apply_edits(eligible["edits"], ()))
            return _RecordedBase(ref, edited, visible["eligible"], read_recalled(visible, tuple))
        named = Ref.from_mapping(eligible["base"])
        base = next((each for each in before if each.ref == named), None)
        if base is None:
            raise ValueError(f"it refers to {named.entry_id}, which is neither its intent's last one nor the session's")
        recalled = read_recalled(visible, base.shown) if "recalled" in visible else ()
        edits = eligible["edits"]
        edited = _changed(base.eligible, edits) if base is own else list(apply_edits(edits, base.eligible))
        return _RecordedBase(ref, edited, visible["eligible"], recalled)


def _changed(before: list[Ref], edits: Sequence[list[int] | AddedRefs]) -> list[Ref]:
    """Applies edits to a list of references. If they only append, `before` itself is extended and returned."""
    if edits and edits[0] == [0, len(before)]:
        added = [step for step in edits[1:] if not isinstance(step, list)]
        if len(added) == len(edits) - 1:
            for step in added:
                before += read_refs(step["add"])
            return before
    return list(apply_edits(edits, before))
