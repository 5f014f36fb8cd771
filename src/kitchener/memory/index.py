"""Finds a subject's entries without scanning, and keeps the subjects in use folded in memory.

The two ledgers are indexed by namespace and artifact, next to their index by session: derived places in a file that can be
deleted at any time, each line checked against its own hash when it is read through them. A subject that is asked for is
folded once from its own entries and then kept up to date, entry by entry; how many events are kept so is bounded. So a read
costs by the subject's own memory at the first time and by nothing that grows afterwards.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

import anyio

from kitchener.ledger import StoredEntry
from kitchener.memory.subject import SubjectMemory
from kitchener.records.events import read_payload

SIGNALS: Final = "SIGNALS"
"""Ledger id of the signals."""
OVERLAYS: Final = "OVERLAYS"
"""Ledger id of the overlays."""


def signal_keys(entry_type: str, payload: Mapping[str, Any]) -> tuple[str, ...]:
    """Under which keys an entry of the signals ledger is found."""
    namespace = payload.get("namespace")
    return (f"in:{namespace}",) if isinstance(namespace, str) else ()


def overlay_keys(entry_type: str, payload: Mapping[str, Any]) -> tuple[str, ...]:
    """Under which keys an entry of the overlays ledger is found: its namespace, and its artifact wherever that is."""
    keys = signal_keys(entry_type, payload)
    artifact_id = payload.get("artifact_id") or payload.get("overlay_id")
    return (*keys, artifact_key(artifact_id)) if keys and isinstance(artifact_id, str) else keys


def artifact_key(artifact_id: str) -> str:
    """The key of all records of an artifact, in every namespace."""
    return f"artifact:{artifact_id}"


class Readable(Protocol):
    """What is needed of a ledger to read it: `LedgerClient` and `LedgerReader` both have it."""

    @property
    def position(self) -> int:
        """Number of the last entry."""
        ...

    def read(self, *, key: str | None = None, up_to_seq: int | None = None) -> AsyncIterator[StoredEntry]:
        """The entries with a key, ascending."""
        ...


async def fold_subject(namespace: str, signals: Readable, overlays: Readable) -> SubjectMemory:
    """The memory of a namespace as of now, folded from its own entries.

    Raises:
        LedgerDamaged: a line is not what was written
    """
    subject, key = SubjectMemory(namespace), f"in:{namespace}"
    # Both up to here: what is written meanwhile is applied by its writer.
    signals_end, overlays_end = signals.position, overlays.position
    async for entry in signals.read(key=key, up_to_seq=signals_end):
        subject.apply_signal(entry.seq, entry.timestamp, read_payload(entry.entry_type, entry.payload))
    async for entry in overlays.read(key=key, up_to_seq=overlays_end):
        payload = read_payload(entry.entry_type, entry.payload)
        subject.apply_overlay(entry.seq, entry.timestamp, entry.entry_type, payload, entry.ref)
    return subject


class Residents:
    """The subjects in use, folded.

    Args:
        load: folds a namespace from its entries
        max_events: signal events kept in all of them together; the longest unused go first
    """

    def __init__(self, load: Callable[[str], Awaitable[SubjectMemory]], max_events: int) -> None:
        self._load, self._max_events = load, max_events
        self._subjects: OrderedDict[str, SubjectMemory] = OrderedDict()
        self._loading: dict[str, anyio.Event] = {}
        self._held = 0

    def __len__(self) -> int:
        return len(self._subjects)

    @property
    def events_held(self) -> int:
        """Events in memory, counting a small sum for each subject."""
        return self._held

    def at_hand(self, namespace: str) -> SubjectMemory | None:
        """The memory of a namespace that is in use; None: it has to be asked for with `get`."""
        subject = self._subjects.get(namespace)
        if subject is not None:
            self._subjects.move_to_end(namespace)
        return subject

    async def get(self, namespace: str) -> SubjectMemory:
        """The memory of a namespace. Use it before the next wait, or pin it: it may be put away then."""
        while True:
            subject = self.at_hand(namespace)
            if subject is not None:
                return subject
            others = self._loading.get(namespace)
            if others is None:
                return await self._fetch(namespace)
            await others.wait()

    def grown(self, events: int) -> None:
        """Takes note of events that were added to a subject."""
        self._held += events
        if self._held > self._max_events:
            self._put_away()

    async def _fetch(self, namespace: str) -> SubjectMemory:
        done = self._loading[namespace] = anyio.Event()
        try:
            subject = await self._load(namespace)
            self._subjects[namespace] = subject
            self.grown(_cost(subject))
            return subject
        finally:
            del self._loading[namespace]
            done.set()

    def _put_away(self) -> None:
        newest = next(reversed(self._subjects))
        for namespace in list(self._subjects):
            if self._held <= self._max_events or namespace == newest:
                return
            if not self._subjects[namespace].pins:
                self._held -= _cost(self._subjects.pop(namespace))


def _cost(subject: SubjectMemory) -> int:
    return subject.event_count + _EMPTY_SUBJECT


_EMPTY_SUBJECT: Final = 8
"""What a subject takes beside its events, counted in events."""
