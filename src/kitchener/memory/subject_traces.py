"""Finds what the memory's ledgers contain of a subject to erase: the subject's namespaces, and uses of their events elsewhere.

Only reads and decides; `HO3Memory.erase_subject` writes. A subject may have returned after an earlier erasure; entries before
that erasure are ignored. Explained in `docs/erasure.md`.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kitchener.ids import split_namespace
from kitchener.ledger import Ledger
from kitchener.memory.recorded_signals import stored_signals
from kitchener.memory.subject_cache import namespace_of
from kitchener.records import events
from kitchener.records.entries import OverlayPayload, SubjectErasedPayload, payload_as


class ErasureCounts(NamedTuple):
    """How much of the memory an erasure concerned."""

    artifacts: int
    """Number of artifacts with the subject as a source, deactivated by this erasure or earlier."""
    events: int
    """Number of the subject's signal events."""


@dataclass(slots=True)
class SubjectTraces:
    """The entries in the memory's ledgers that concern a subject."""

    signals: Ledger
    overlays: Ledger
    key_id: str
    """Kid of the destroyed key, which identifies this erasure."""
    events: dict[str, set[str]] = field(default_factory=dict)
    """Namespace to ids of the subject's events, for the subject's own namespaces, in alphabetical order."""
    foreign_events: list[tuple[str, str]] = field(default_factory=list)
    """Namespace and id of each event that a session of the subject logged in another subject's namespace."""
    artifacts: list[tuple[str, str]] = field(default_factory=list)
    """Namespace and key of each artifact with the subject as a source, in the order of the ledger."""
    recorded: set[tuple[str, str]] = field(default_factory=set)
    """Ledger id and namespace of each `SUBJECT_ERASED` that this erasure has written already."""

    def unrecorded(self) -> Iterator[tuple[Ledger, str, dict[str, int]]]:
        """Ledger, namespace and counts of each `SUBJECT_ERASED` that is still to be written."""
        for namespace, event_ids in self.events.items():
            learned = sum(each == namespace for each, _ in self.artifacts)
            for ledger, counts in ((self.overlays, {"artifacts": learned}), (self.signals, {"events": len(event_ids)})):
                if (ledger.ledger_id, namespace) not in self.recorded:
                    yield ledger, namespace, counts

    @property
    def found(self) -> ErasureCounts:
        """Number of artifacts and number of the subject's own events."""
        return ErasureCounts(len(self.artifacts), sum(map(len, self.events.values())))


async def find_traces(
    subject_id: str,
    sessions: Collection[str],
    namespaces: Iterable[str],
    ledgers: tuple[Ledger, Ledger],
    *,
    key_id: str,
) -> SubjectTraces:
    """Finds a subject's entries in the memory. Reads every overlay, and the subject's own signals.

    Args:
        subject_id: the subject to erase
        sessions: the subject's sessions
        namespaces: namespaces that may hold the subject's memory
        ledgers: the signals ledger and the overlays ledger
        key_id: kid of the destroyed key
    """
    signals, overlays = ledgers
    traces = SubjectTraces(signals, overlays, key_id)
    own = set(namespaces)
    if split_namespace(subject_id) == (None, subject_id):  # a namespace without an agent class belongs to a subject too
        own.add(subject_id)
    for session_id in sorted(sessions):
        async for entry in signals.read(session_id=session_id, entry_type=events.HO3_SIGNAL):
            namespace = namespace_of(entry)
            if events.read_common(entry).get("subject_id") == subject_id:
                own.add(namespace)
            else:
                traces.foreign_events.extend((namespace, event_id) for event_id in stored_signals(entry))
    types = (events.HO3_OVERLAY, events.SUBJECT_ERASED)
    learned = [entry async for entry in overlays.read(entry_type=types)]
    own.update(namespace_of(entry) for entry in learned if events.read_common(entry).get("subject_id") == subject_id)
    keys = {f"in:{namespace}": namespace for namespace in own}
    for namespace in sorted(keys[key] for key in await signals.known_keys(keys) | await overlays.known_keys(keys)):
        traces.events[namespace] = await _events_in(namespace, traces)
    sources = {event_id for each in traces.events.values() for event_id in each}
    sources.update(event_id for _, event_id in traces.foreign_events)
    artifacts: dict[tuple[str, str], None] = {}
    for entry in learned:
        namespace = namespace_of(entry)
        if entry.entry_type == events.HO3_OVERLAY:
            overlay = payload_as(OverlayPayload, entry.payload)
            if namespace in traces.events or not sources.isdisjoint(overlay.get("source_event_ids") or ()):
                artifacts[namespace, overlay.get("artifact_id") or overlay["overlay_id"]] = None
        elif payload_as(SubjectErasedPayload, entry.payload).get("key_id") == key_id:
            traces.recorded.add((overlays.ledger_id, namespace))
        elif namespace in traces.events:
            artifacts = {place: None for place in artifacts if place[0] != namespace}
    traces.artifacts.extend(artifacts)
    return traces


async def _events_in(namespace: str, traces: SubjectTraces) -> set[str]:
    """Ids of the events in one of the subject's namespaces since an earlier erasure; notes records of this erasure."""
    found: set[str] = set()
    types = (events.HO3_SIGNAL, events.SUBJECT_ERASED)
    async for entry in traces.signals.read(key=f"in:{namespace}", entry_type=types):
        if entry.entry_type == events.HO3_SIGNAL:
            found.update(stored_signals(entry))
        elif payload_as(SubjectErasedPayload, entry.payload).get("key_id") == traces.key_id:
            traces.recorded.add((traces.signals.ledger_id, namespace))
        else:
            found.clear()
    return found
