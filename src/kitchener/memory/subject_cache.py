"""Folds a subject's entries, found through an index, and caches the folded subjects.

The two ledgers are indexed by session, by namespace and by artifact. The index can be deleted at any time; each line found
through it is checked against its own hash. The first read of a subject folds the subject's own entries. Later entries update
the cached fold one by one, so later reads read no ledger. The number of cached events is bounded.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from typing import Final, Protocol

import anyio

from kitchener.ledger import StoredEntry
from kitchener.memory.recorded_signals import seen_in
from kitchener.memory.subject_memory import SubjectMemory
from kitchener.records.entries import MemoryPayload, payload_as
from kitchener.records.events import IMPORTED_TYPES, SUBJECT_ERASED, read_payload
from kitchener.records.index_keys import keys_of_imported

SIGNALS: Final = "SIGNALS"
"""Name of the signals ledger."""
OVERLAYS: Final = "OVERLAYS"
"""Name of the overlays ledger."""


def signal_keys(entry_type: str, payload: Mapping[str, object]) -> tuple[str, ...]:
    """The index keys of an entry in the signals ledger: its namespace."""
    namespace = payload.get("namespace")
    return (f"in:{namespace}",) if isinstance(namespace, str) else keys_of_imported(signal_keys, entry_type, payload)


def overlay_keys(entry_type: str, payload: Mapping[str, object]) -> tuple[str, ...]:
    """The index keys of an entry in the overlays ledger: its namespace, and its artifact."""
    if entry_type in IMPORTED_TYPES:
        return keys_of_imported(overlay_keys, entry_type, payload)
    keys = signal_keys(entry_type, payload)
    artifact_id = payload.get("artifact_id") or payload.get("overlay_id")
    return (*keys, artifact_key(artifact_id)) if keys and isinstance(artifact_id, str) else keys


def artifact_key(artifact_id: str) -> str:
    """The index key of all records of an artifact, in every namespace."""
    return f"artifact:{artifact_id}"


def namespace_of(entry: StoredEntry) -> str:
    """The namespace of an entry of the memory."""
    return payload_as(MemoryPayload, entry.payload)["namespace"]


class ReadableMemoryLedger(Protocol):
    """A readable ledger: a `LedgerClient` or a `LedgerReader`."""

    @property
    def position(self) -> int:
        """Number of the last entry."""
        ...

    def read(self, *, key: str | None = None, up_to_seq: int | None = None) -> AsyncIterator[StoredEntry]:
        """The entries with a key, ascending."""
        ...


async def fold_subject(namespace: str, signals: ReadableMemoryLedger, overlays: ReadableMemoryLedger) -> SubjectMemory:
    """Folds the memory of a namespace from its own entries, up to the present end of both ledgers.

    Raises:
        LedgerDamaged: a line is not what was written
    """
    subject, key = SubjectMemory(namespace), f"in:{namespace}"
    # Take both ends first: the writer of a later entry applies it to the fold.
    signals_end, overlays_end = signals.position, overlays.position
    async for entry in signals.read(key=key, up_to_seq=signals_end):
        if entry.entry_type == SUBJECT_ERASED:
            subject.forget_signals()
        else:
            subject.apply_signals(entry.seq, entry.timestamp, seen_in(entry))
    async for entry in overlays.read(key=key, up_to_seq=overlays_end):
        payload = read_payload(entry.entry_type, entry.payload)
        subject.apply_overlay(entry.seq, entry.timestamp, entry.entry_type, payload, entry.ref)
    return subject


class _LookUp:
    """One look-up, shared by all callers that ask before it starts."""

    __slots__ = ("done", "known", "wanted")

    def __init__(self) -> None:
        self.wanted: set[str] = set()
        self.known: Collection[str] | None = None
        self.done = anyio.Event()


class SubjectCache:
    """A cache of folded subjects.

    Args:
        load: folds a namespace from its entries
        find_known: returns the namespaces that have entries; most new namespaces have none
        max_events: most signal events in the whole cache; evicts the least recently used subject first
    """

    def __init__(
        self,
        load: Callable[[str], Awaitable[SubjectMemory]],
        find_known: Callable[[Collection[str]], Awaitable[Collection[str]]],
        max_events: int,
    ) -> None:
        self._load, self._find_known, self._max_events = load, find_known, max_events
        self._next_look: _LookUp | None = None
        self._looking = anyio.Lock()
        self._subjects: OrderedDict[str, SubjectMemory] = OrderedDict()
        self._loading: dict[str, anyio.Event] = {}
        self._costs: dict[str, int] = {}
        """The share of each cached subject in `_held`, in events."""
        self._held = 0

    def __len__(self) -> int:
        return len(self._subjects)

    def cached(self, namespace: str) -> SubjectMemory | None:
        """The cached memory of a namespace; None: it is not cached, so use `get`."""
        subject = self._subjects.get(namespace)
        if subject is not None:
            self._subjects.move_to_end(namespace)
        return subject

    async def get(self, namespace: str) -> SubjectMemory:
        """The memory of a namespace. Use it before the next await, or pin it, because an await may evict it."""
        while True:
            subject = self.cached(namespace)
            if subject is not None:
                return subject
            others = self._loading.get(namespace)
            if others is None:
                return await self._fetch(namespace)
            await others.wait()

    def drop(self, namespace: str) -> None:
        """Evicts a subject, unless an entry of it is being written."""
        subject = self._subjects.get(namespace)
        if subject is not None and not subject.pins:
            self._remove(namespace)

    def count(self, namespace: str) -> None:
        """Counts what was added to a cached subject, and evicts subjects if the cache is full."""
        subject = self._subjects.get(namespace)
        if subject is not None:
            cost = _cost(subject)
            self._held += cost - self._costs.get(namespace, 0)
            self._costs[namespace] = cost
            if self._held > self._max_events:
                self._evict()

    def _remove(self, namespace: str) -> None:
        del self._subjects[namespace]
        self._held -= self._costs.pop(namespace, 0)

    async def _fetch(self, namespace: str) -> SubjectMemory:
        done = self._loading[namespace] = anyio.Event()
        try:
            subject = await self._load(namespace) if await self._is_known(namespace) else SubjectMemory(namespace)
            self._subjects[namespace] = subject
            self.count(namespace)
            return subject
        finally:
            del self._loading[namespace]
            done.set()

    async def _is_known(self, namespace: str) -> bool:
        """Whether a namespace has entries. A look-up waits for a thread, so callers that ask meanwhile share the next one."""
        while True:
            look = self._next_look
            if look is not None:
                look.wanted.add(namespace)
                await look.done.wait()
            else:
                look = self._next_look = _LookUp()
                look.wanted.add(namespace)
                await self._perform(look)
            if look.known is not None:  # None: the task that looked was cancelled, so look again
                return namespace in look.known

    async def _perform(self, look: _LookUp) -> None:
        try:
            await anyio.lowlevel.checkpoint()  # lets other ready tasks join this look-up
            async with self._looking:
                self._next_look = None
                look.known = await self._find_known(look.wanted)
        finally:
            if self._next_look is look:
                self._next_look = None
            look.done.set()

    def _evict(self) -> None:
        newest = next(reversed(self._subjects))
        for namespace in list(self._subjects):
            if self._held <= self._max_events or namespace == newest:
                return
            if not self._subjects[namespace].pins:
                self._remove(namespace)


def _cost(subject: SubjectMemory) -> int:
    return subject.event_count + subject.record_chars // _EVENT_CHARS + _EMPTY_SUBJECT


_EVENT_CHARS: Final = 128
"""Characters of overlays that count as one event."""


_EMPTY_SUBJECT: Final = 8
"""What a subject without events counts as, in events."""
