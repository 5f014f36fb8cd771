"""What the memory's ledgers hold of a subject who is being erased: their own namespaces, and what others took from them.

Reads and decides; `HO3Memory.erase_subject` writes. A subject may have been erased before, and have come back: what is on
record up to then does not count. Explained in `docs/erasure.md`.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kitchener.ids import split_namespace
from kitchener.ledger import LedgerClient
from kitchener.records import events


class Erased(NamedTuple):
    """What an erasure found in a memory."""

    artifacts: int
    """Learned lines that had the subject as a source, withdrawn now or before."""
    events: int
    """Signal events of the subject."""


@dataclass(slots=True)
class Traces:
    """Where a subject stands in the memory's ledgers."""

    signals: LedgerClient
    overlays: LedgerClient
    key_id: str
    """Of the erasure that is under way."""
    events: dict[str, set[str]] = field(default_factory=dict)
    """Ids of the subject's events by namespace: their own namespaces, in alphabetical order."""
    foreign_events: list[tuple[str, str]] = field(default_factory=list)
    """Namespace and id of each event that a session of the subject gave to another's memory."""
    artifacts: list[tuple[str, str]] = field(default_factory=list)
    """Namespace and key of each artifact that had the subject as a source, in the order in which they were learned."""
    recorded: set[tuple[str, str]] = field(default_factory=set)
    """Ledger id and namespace of what is on record of this erasure."""

    def unrecorded(self) -> Iterator[tuple[LedgerClient, str, dict[str, int]]]:
        """Where `SUBJECT_ERASED` is missing, and the counts that go with it."""
        for namespace, event_ids in self.events.items():
            learned = sum(each == namespace for each, _ in self.artifacts)
            for ledger, counts in ((self.overlays, {"artifacts": learned}), (self.signals, {"events": len(event_ids)})):
                if (ledger.ledger_id, namespace) not in self.recorded:
                    yield ledger, namespace, counts

    @property
    def found(self) -> Erased:
        """The counts."""
        return Erased(len(self.artifacts), sum(map(len, self.events.values())))


async def find_traces(
    subject_id: str,
    sessions: Collection[str],
    namespaces: Iterable[str],
    ledgers: tuple[LedgerClient, LedgerClient],
    *,
    key_id: str,
) -> Traces:
    """Where a subject stands in the memory. Reads all that was ever learned, and the subject's own signals.

    Args:
        subject_id: who
        sessions: their sessions
        namespaces: where their memory may be
        ledgers: signals and overlays
        key_id: the kid of the key that is destroyed
    """
    signals, overlays = ledgers
    traces = Traces(signals, overlays, key_id)
    own = set(namespaces)
    if split_namespace(subject_id) == (None, subject_id):  # a namespace without a class is a subject's too
        own.add(subject_id)
    for session_id in sorted(sessions):
        async for entry in signals.read(session_id=session_id, entry_type=events.HO3_SIGNAL):
            namespace = str(entry.payload["namespace"])
            if entry.payload.get("subject_id") == subject_id:
                own.add(namespace)
            else:
                traces.foreign_events.append((namespace, str(entry.payload["event_id"])))
    types = (events.HO3_OVERLAY, events.SUBJECT_ERASED)
    learned = [(entry.entry_type, entry.payload) async for entry in overlays.read(entry_type=types)]
    own.update(str(payload["namespace"]) for _, payload in learned if payload.get("subject_id") == subject_id)
    keys = {f"in:{namespace}": namespace for namespace in own}
    for namespace in sorted(keys[key] for key in await signals.known_keys(keys) | await overlays.known_keys(keys)):
        traces.events[namespace] = await _events_in(namespace, traces)
    sources = {event_id for each in traces.events.values() for event_id in each}
    sources.update(event_id for _, event_id in traces.foreign_events)
    artifacts: dict[tuple[str, str], None] = {}
    for entry_type, payload in learned:
        namespace = str(payload["namespace"])
        if entry_type == events.HO3_OVERLAY:
            if namespace in traces.events or not sources.isdisjoint(payload.get("source_event_ids") or ()):
                artifacts[namespace, str(payload.get("artifact_id") or payload["overlay_id"])] = None
        elif payload.get("key_id") == key_id:
            traces.recorded.add((overlays.ledger_id, namespace))
        elif namespace in traces.events:
            artifacts = {place: None for place in artifacts if place[0] != namespace}
    traces.artifacts.extend(artifacts)
    return traces


async def _events_in(namespace: str, traces: Traces) -> set[str]:
    """The events in a namespace of the subject since they were erased last."""
    found: set[str] = set()
    types = (events.HO3_SIGNAL, events.SUBJECT_ERASED)
    async for entry in traces.signals.read(key=f"in:{namespace}", entry_type=types):
        if entry.entry_type == events.HO3_SIGNAL:
            found.add(str(entry.payload["event_id"]))
        elif entry.payload.get("key_id") == traces.key_id:
            traces.recorded.add((traces.signals.ledger_id, namespace))
        else:
            found.clear()
    return found
