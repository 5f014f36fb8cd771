"""Finds a subject's entries without scanning, and keeps the subjects in use folded in memory.

The two ledgers are indexed by namespace and artifact, next to their index by session: derived places in a file that can be
deleted at any time, each line checked against its own hash when it is read through them. A subject that is asked for is
folded once from its own entries and then kept up to date, entry by entry; how many events are kept so is bounded. So a read
costs by the subject's own memory at the first time and by nothing that grows afterwards.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from typing import Any, Final, Protocol

import anyio

from kitchener.ledger import StoredEntry
from kitchener.memory.subject import SubjectMemory
from kitchener.records.events import SUBJECT_ERASED, read_payload

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
        if entry.entry_type == SUBJECT_ERASED:
            subject.forget_signals()
        else:
            subject.apply_signal(entry.seq, entry.timestamp, read_payload(entry.entry_type, entry.payload))
    async for entry in overlays.read(key=key, up_to_seq=overlays_end):
        payload = read_payload(entry.entry_type, entry.payload)
        subject.apply_overlay(entry.seq, entry.timestamp, entry.entry_type, payload, entry.ref)
    return subject


class _Look:
    """One look-up for all who ask while it is being got ready."""

    __slots__ = ("done", "known", "wanted")

    def __init__(self) -> None:
        self.wanted: set[str] = set()
        self.known: Collection[str] | None = None
        self.done = anyio.Event()


class Residents:
    """The subjects in use, folded.

    Args:
        load: folds a namespace from its entries
        find_known: which of some namespaces have entries at all: most that are asked for first have none yet
        max_events: signal events kept in all of them together; the longest unused go first
    """

    def __init__(
        self,
        load: Callable[[str], Awaitable[SubjectMemory]],
        find_known: Callable[[Collection[str]], Awaitable[Collection[str]]],
        max_events: int,
    ) -> None:
        self._load, self._find_known, self._max_events = load, find_known, max_events
        self._gathering: _Look | None = None
        self._looking = anyio.Lock()
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

    def drop(self, namespace: str) -> None:
        """Puts a subject away, unless something of it is being written."""
        subject = self._subjects.get(namespace)
        if subject is not None and not subject.pins:
            self._held -= _cost(self._subjects.pop(namespace))

    def grown(self, events: int) -> None:
        """Takes note of events that were added to a subject."""
        self._held += events
        if self._held > self._max_events:
            self._put_away()

    async def _fetch(self, namespace: str) -> SubjectMemory:
        done = self._loading[namespace] = anyio.Event()
        try:
            subject = await self._load(namespace) if await self._is_known(namespace) else SubjectMemory(namespace)
            self._subjects[namespace] = subject
            self.grown(_cost(subject))
            return subject
        finally:
            del self._loading[namespace]
            done.set()

    async def _is_known(self, namespace: str) -> bool:
        """Whether a namespace has entries. A look-up waits for a thread, so those who ask meanwhile share the next one."""
        while True:
            look = self._gathering
            if look is not None:
                look.wanted.add(namespace)
                await look.done.wait()
            else:
                look = self._gathering = _Look()
                look.wanted.add(namespace)
                await self._perform(look)
            if look.known is not None:  # else whoever looked was cancelled
                return namespace in look.known

    async def _perform(self, look: _Look) -> None:
        try:
            await anyio.lowlevel.checkpoint()  # so that all who come now are counted
            async with self._looking:
                self._gathering = None
                look.known = await self._find_known(look.wanted)
        finally:
            if self._gathering is look:
                self._gathering = None
            look.done.set()

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
