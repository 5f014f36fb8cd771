"""Explains an artifact: what the subject said that led to it, and what has happened to it since."""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final, TypeVar

from kitchener.cli.memory.agent_memory import AgentMemory
from kitchener.cli.memory.cost import LineCost, WorkOrderCosts, costs_of, learning_of
from kitchener.errors import UnknownArtifact
from kitchener.inspection.memory_views import LearnedView, learned_at, learned_view, line_text, where_it_speaks
from kitchener.inspection.shown_text import UNREADABLE, one_line, short_time
from kitchener.inspection.turn_views.turn_end import TurnState, shown_reply, state_words
from kitchener.ledger import LedgerReader, StoredEntry
from kitchener.memory import GateResult
from kitchener.memory.reader import record_facts
from kitchener.memory.signals import RecordedEvent
from kitchener.memory.subject_memory import why_erased
from kitchener.plain_names import counted
from kitchener.records import events
from kitchener.records.entries import (
    AbortReason,
    CommonPayload,
    OverlayDeactivatedPayload,
    OverlayPayload,
    OverlayWeightPayload,
    QuarantinePayload,
    SealedText,
    TurnAbortedPayload,
    TurnCompletedPayload,
    TurnStartedPayload,
    opened,
    payload_as,
)
from kitchener.records.index_keys import bias_index_key, turn_index_key

AT_MOST: Final = 20
"""Most printed turns of one kind; JSON has all."""
_WIDTH: Final = 100
_FACTS: Final = ("reason", "superseded_by", "target", "block_signal", "event_ts", "erased_subject")
"""Fields of the memory's entries that `--json` and an export show."""
T = TypeVar("T")


@dataclass(slots=True)
class TurnText:
    """The message and the reply of one turn."""

    turn_id: str
    session_id: str | None = None
    """The session; None: the ledger does not know the turn."""
    started_at: str | None = None
    state: TurnState = "unknown"
    abort_reason: AbortReason | None = None
    """Why it was aborted; None: it was not."""
    message: SealedText | None = None
    """The message; sealed if it cannot be decrypted."""
    response: SealedText | None = None

    def as_json(self) -> dict[str, object]:
        return {
            "turn_id": self.turn_id,
            "session_id": self.session_id,
            "started_at": self.started_at,
            "state": state_words(self.state, self.abort_reason),
            "message": opened(self.message),
            "response": opened(self.response),
        }

    def said(self) -> list[str]:
        """Message and reply, one line each."""
        if self.session_id is None:
            return ["(the supervisor's ledger does not know this turn)"]
        reply = f"< {_text(self.response)}" if self.state == "completed" else f"({state_words(self.state, self.abort_reason)})"
        return [f"> {_text(self.message)}", reply]


async def read_turn_text(ho2m: LedgerReader | None, turn_id: str) -> TurnText:
    """A turn by its id; no scan is needed."""
    turn = TurnText(turn_id)
    if ho2m is None:
        return turn
    async for entry in ho2m.read(key=turn_index_key(turn_id)):
        started = events.read_as(TurnStartedPayload, entry)
        turn.session_id, turn.started_at, turn.state = started["session_id"], entry.timestamp, "open"
        turn.message = started["user_message"]
    if turn.session_id is None:
        return turn
    ends = (events.TURN_COMPLETED, events.TURN_ABORTED)
    async for entry in ho2m.read(session_id=turn.session_id, entity_id=turn_id, entry_type=ends):
        payload = events.read_payload(entry.entry_type, entry.payload)
        if entry.entry_type == events.TURN_COMPLETED:
            turn.state, turn.response = "completed", shown_reply(payload_as(TurnCompletedPayload, payload))
        else:
            turn.state, turn.abort_reason = "aborted", payload_as(TurnAbortedPayload, payload)["reason"]
    return turn


async def turns_shown(ho2m: LedgerReader | None, subject_id: str, artifact_id: str) -> list[str]:
    """Ids of the turns in which a model was shown a learned line, oldest first."""
    return [] if ho2m is None else list(dict.fromkeys([each async for each in _shown(ho2m, subject_id, artifact_id)]))


async def _shown(ho2m: LedgerReader, subject_id: str, artifact_id: str) -> AsyncIterator[str]:
    async for entry in ho2m.read(key=bias_index_key(subject_id, artifact_id)):
        turn_id = events.read_as(CommonPayload, entry).get("turn_id")
        if turn_id is not None:
            yield turn_id


def _text(value: SealedText | None) -> str:
    return one_line(value, _WIDTH) if isinstance(value, str) else UNREADABLE


@dataclass(frozen=True, slots=True)
class ArtifactExplanation:
    """Everything on record about one artifact."""

    agent_class: str
    subject_id: str
    learned: LearnedView
    gate: GateResult
    """The present state of its signal's gate."""
    evidence: list[RecordedEvent]
    """The events from which it was learned, oldest first."""
    unknown: list[str]
    """Events that it names but the memory does not know, because it was imported or erased."""
    turns: dict[str, TurnText]
    """The turns of those events, and the turns that were shown it, up to the requested number."""
    shown_in: list[str]
    """Turns that were shown its line, oldest first."""
    records: list[StoredEntry]
    """The entries about it, oldest first."""
    quarantines: list[StoredEntry]
    """Its quarantined sources."""
    cost: LineCost
    """The cost of learning and showing it."""

    def as_json(self) -> dict[str, object]:
        overlay, gate = self.learned.overlay, self.gate
        return {
            **self.learned.as_json(),
            "agent_class": self.agent_class,
            "subject_id": self.subject_id,
            "model": overlay.model,
            "prompt_pack_version": overlay.prompt_pack_version,
            "window_start": overlay.window_start,
            "window_end": overlay.window_end,
            "gate_snapshot": overlay.gate_snapshot,
            "gate_now": {**asdict(gate), "progress": gate.progress},
            "source_signal_ids": list(overlay.source_signal_ids or (overlay.signal_id,)),
            "events": [each._asdict() for each in self.evidence],
            "unknown_event_ids": self.unknown,
            "turns": [self.turns[each].as_json() for each in self.source_turns()],
            "records": [record_json(each) for each in self.records],
            "quarantines": [record_json(each) for each in self.quarantines],
            "shown_in": [self.turns[each].as_json() for each in self.shown_in],
            "cost": self.cost.as_json(),
        }

    def source_turns(self) -> list[str]:
        """The turns behind it, oldest first."""
        return list(dict.fromkeys(each.turn_id for each in self.evidence if each.turn_id is not None))

    def lines(self) -> Iterator[str]:
        yield from self._head()
        yield from self._because()
        yield "\nwhat became of it:"
        for entry in sorted((*self.records, *self.quarantines), key=lambda each: each.seq):
            yield f"  {short_time(entry.timestamp)}  {entry_text(entry)}"
        turns = len(self.shown_in)
        yield f"\nshown in {counted(turns, 'turn')}{':' if turns else ' so far'}"
        for turn_id in _first(self.shown_in):
            yield f"  {turn_id}  {short_time(self.turns[turn_id].started_at or '?')}"
            yield f"    {self.turns[turn_id].said()[0]}"
        yield from _rest(self.shown_in, "turns")
        yield f"\ncost: {self.cost.line()}"

    def _head(self) -> Iterator[str]:
        overlay, learned = self.learned.overlay, self.learned
        yield f"{overlay.key}: {line_text(overlay, _WIDTH)}"
        yield f"  about {self.subject_id} ({self.agent_class}), {where_it_speaks(overlay)}"
        why = f": {one_line(learned.why, _WIDTH)}" if learned.why else ""
        yield f"  {learned.state}{why}; weight {learned.weight_now:.2f} now, {learned.weight:.2f} when set"
        author = f" by {overlay.model} ({overlay.prompt_pack_version!s})" if overlay.model else ""
        yield f"  learned {learned_at(overlay)} from {overlay.signal_id}{author}"
        snapshot, gate = overlay.gate_snapshot, self.gate
        if snapshot is not None:
            then = "an unknown count"
            if snapshot.keys() >= {"count", "sessions"}:
                then = f"{counted(snapshot['count'], 'event')} in {counted(snapshot['sessions'], 'session')}"
            needs = f"{gate.count_threshold} in {gate.session_threshold}"
            now = f"{gate.count} in {gate.session_count}"
            yield f"  its gate opened at {then}; it needs {needs}, {now} count now ({gate.reason})"

    def _because(self) -> Iterator[str]:
        sessions = len({each.session_id for each in self.evidence})
        yield f"\nbecause of {counted(len(self.evidence), 'event')} in {counted(sessions, 'session')}:"
        for turn_id in _first(self.source_turns()):
            turn = self.turns[turn_id]
            mine = [each for each in self.evidence if each.turn_id == turn_id]
            yield f"  {turn_id} of {mine[0].session_id}  {short_time(mine[0].timestamp)}"
            yield from (f"    {line}" for line in turn.said())
            yield from (f"    {each.signal_id}  {each.event_id}{self._quarantined(each)}" for each in mine)
        yield from _rest(self.source_turns(), "turns")
        for each in _first([each for each in self.evidence if each.turn_id is None]):
            yield f"  {each.signal_id}  {each.event_id} of {each.session_id}, no turn named"
        is_erased = any(why_erased(each.payload) for each in self.records)
        for event_id in _first(self.unknown):
            yield f"  {event_id}  {'(erased)' if is_erased else '(imported; no ledger here knows it)'}"
        yield from _rest(self.unknown, "unknown events")

    def _quarantined(self, event: RecordedEvent) -> str:
        targets = {events.read_as(QuarantinePayload, each)["target"] for each in self.quarantines}
        return "  (in quarantine)" if {event.event_id, event.signal_id} & targets else ""


async def explained(
    place: AgentMemory, artifact_id: str, subject_id: str | None, *, turns_at_most: int | None = None
) -> ArtifactExplanation:
    """Everything on record about an artifact.

    Args:
        place: whose memory
        artifact_id: `ART-…`
        subject_id: the subject; None: the only subject that has it
        turns_at_most: most turns of each kind whose text is read; None: all

    Raises:
        UnknownArtifact: there is no such artifact
        CallerError: several subjects have it
    """
    async with place.reader() as reader:
        subject_id = await place.owner_of(reader, artifact_id, subject_id)
        if reader is None:
            raise UnknownArtifact(artifact_id, place.agent_class)
        namespace = place.namespace(subject_id)
        subject, cut = await reader.snapshot(namespace=namespace)
        overlay = subject.overlay(artifact_id, cut)
        if overlay is None:
            raise UnknownArtifact(artifact_id, namespace)
        evidence = subject.recorded(overlay.source_event_ids, cut)
        records = await reader.read_records(artifact_id, namespace=namespace)
        sources = {overlay.signal_id, *overlay.source_signal_ids, *overlay.source_event_ids}
        found_quarantines = await reader.read_quarantines(namespace=namespace)
        quarantines = [each for each in found_quarantines if events.read_as(QuarantinePayload, each)["target"] in sources]
        learned = [learning_of(each) for each in records if each.entry_type == events.HO3_OVERLAY]
    async with place.paths.reader(place.agent_class) as ho2m:
        costs = WorkOrderCosts() if ho2m is None else await costs_of(ho2m, subject_id, overlay.key, learned)
    known = {each.event_id for each in evidence}
    found = ArtifactExplanation(
        place.agent_class,
        subject_id,
        learned_view(overlay, subject, cut, place.config),
        subject.gate(overlay.signal_id, cut, place.config),
        evidence,
        [each for each in overlay.source_event_ids if each not in known],
        {},
        [],
        records,
        quarantines,
        costs.of(subject_id, overlay, learned, place.paths.agent(place.agent_class).token_estimator),
    )
    async with place.paths.reader(place.agent_class) as ho2m:
        await _add_turns(found, ho2m, turns_at_most)
    return found


async def _add_turns(found: ArtifactExplanation, ho2m: LedgerReader | None, at_most: int | None) -> None:
    found.shown_in.extend(await turns_shown(ho2m, found.subject_id, found.learned.overlay.key))
    for turn_id in dict.fromkeys((*found.source_turns()[:at_most], *found.shown_in[:at_most])):
        found.turns[turn_id] = await read_turn_text(ho2m, turn_id)


def record_json(entry: StoredEntry) -> dict[str, object]:
    """An entry of the memory's ledgers, as JSON types."""
    return {"seq": entry.seq, **record_facts(entry, *_FACTS)}


def entry_text(entry: StoredEntry) -> str:
    payload = events.read_payload(entry.entry_type, entry.payload)
    if entry.entry_type == events.HO3_OVERLAY:
        return "imported" if payload_as(OverlayPayload, payload).get("unverified_event_ids") else "learned"
    if entry.entry_type == events.HO3_QUARANTINED:
        quarantine = payload_as(QuarantinePayload, payload)
        return f"{quarantine['target']} put in quarantine: {_reason(quarantine)}"
    if entry.entry_type == events.HO3_OVERLAY_WEIGHT_UPDATED:
        change = payload_as(OverlayWeightPayload, payload)
        return f"given the weight {change['new_weight']:g}: {_reason(change)}"
    ended = payload_as(OverlayDeactivatedPayload, payload)
    by = f" by {ended['superseded_by']}" if "superseded_by" in ended else ""
    target = f" ({ended['target']})" if "target" in ended else ""
    blocked = "; its signal is blocked" if ended.get("block_signal") else ""
    return f"deactivated: {_reason(ended)}{by}{target}{blocked}"


def _reason(payload: QuarantinePayload | OverlayWeightPayload | OverlayDeactivatedPayload) -> str:
    given = payload.get("reason")
    return one_line(given, _WIDTH) if isinstance(given, str) else why_erased(payload) or UNREADABLE


def _first(found: list[T]) -> list[T]:
    return found[:AT_MOST]


def _rest(found: Sequence[object], what: str) -> Iterator[str]:
    if len(found) > AT_MOST:
        yield f"  and {len(found) - AT_MOST} more {what} (--json has them all)"
