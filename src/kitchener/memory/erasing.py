"""What the memory's ledgers hold of a subject who is being erased: their own namespaces, and what others took from them.

Reads and decides; `HO3Memory.erase_subject` writes. Explained in `docs/erasure.md`.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from kitchener.ledger import LedgerClient
from kitchener.records import events


class Erased(NamedTuple):
    """What an erasure found in a memory."""

    artifacts: int
    """Learned lines that had the subject as a source, withdrawn now or before."""
    events: int
    """Signal events of the subject."""


class Traces(NamedTuple):
    """Where a subject stands in the memory's ledgers."""

    signals: LedgerClient
    overlays: LedgerClient
    namespaces: tuple[str, ...]
    """The subject's own, in alphabetical order."""
    own_events: frozenset[str]
    """Ids of the events in them."""
    foreign_events: tuple[tuple[str, str], ...]
    """Namespace and id of each event that a session of the subject gave to another's memory."""
    artifacts: tuple[tuple[str, str], ...]
    """Namespace and key of each artifact that had the subject as a source, in the order in which they were learned."""
    recorded: frozenset[tuple[str, str, str]]
    """Ledger id, namespace and kid of the erasures on record."""

    def unrecorded(self, key_id: str) -> Iterator[tuple[LedgerClient, str, dict[str, int]]]:
        """Where `SUBJECT_ERASED` is missing, and the counts that go with it."""
        for namespace in self.namespaces:
            learned = sum(each == namespace for each, _ in self.artifacts)
            for ledger, counts in ((self.overlays, {"artifacts": learned}), (self.signals, {"events": len(self.own_events)})):
                if (ledger.ledger_id, namespace, key_id) not in self.recorded:
                    yield ledger, namespace, counts


async def find_traces(
    subject_id: str, sessions: Collection[str], namespaces: Collection[str], signals: LedgerClient, overlays: LedgerClient
) -> Traces:
    """Where a subject stands in the memory. Reads all that was ever learned, and the subject's own signals.

    Args:
        subject_id: who
        sessions: their sessions
        namespaces: where their memory may be
        signals, overlays: the ledgers
    """
    own, foreign = await _events_of_sessions(subject_id, sessions, signals)
    own.update(namespaces, [subject_id])  # a namespace without a class is a subject's too
    learned = [entry.payload async for entry in overlays.read(entry_type=events.HO3_OVERLAY)]
    own.update(str(each["namespace"]) for each in learned if each.get("subject_id") == subject_id)
    keys = {f"in:{namespace}": namespace for namespace in own}
    known = sorted(keys[key] for key in await signals.known_keys(keys) | await overlays.known_keys(keys))
    own_events, recorded = set[str](), set[tuple[str, str, str]]()
    for namespace in known:
        for ledger in (signals, overlays):
            wanted = (events.HO3_SIGNAL, events.SUBJECT_ERASED)
            async for entry in ledger.read(key=f"in:{namespace}", entry_type=wanted):
                if entry.entry_type == events.SUBJECT_ERASED:
                    recorded.add((ledger.ledger_id, namespace, str(entry.payload.get("key_id"))))
                else:
                    own_events.add(str(entry.payload["event_id"]))
    sources = own_events.union(event_id for _, event_id in foreign)
    artifacts = {
        (str(each["namespace"]), str(each.get("artifact_id") or each["overlay_id"])): None
        for each in learned
        if each["namespace"] in known or not sources.isdisjoint(each.get("source_event_ids") or ())
    }
    return Traces(signals, overlays, tuple(known), frozenset(own_events), tuple(foreign), tuple(artifacts), frozenset(recorded))


async def _events_of_sessions(
    subject_id: str, sessions: Collection[str], signals: LedgerClient
) -> tuple[set[str], dict[tuple[str, str], None]]:
    """The namespaces of a subject that their sessions gave events to, and what those gave to other subjects' memory."""
    own, foreign = set[str](), dict[tuple[str, str], None]()
    for session_id in sorted(sessions):
        async for entry in signals.read(session_id=session_id, entry_type=events.HO3_SIGNAL):
            namespace = str(entry.payload["namespace"])
            if entry.payload.get("subject_id") == subject_id:
                own.add(namespace)
            else:
                foreign[namespace, str(entry.payload["event_id"])] = None
    return own, foreign
