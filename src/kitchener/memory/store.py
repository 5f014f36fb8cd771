"""Appends signals to the long-term memory and opens its two ledgers: `HO3Memory`, one object with READ and LOG.

LOG appends and returns; nothing here starts a task or calls a model. `overlay_log.py` logs learned lines, `subject_memory.py`
folds entries, and `subject_cache.py` caches the folds. Explained in `docs/memory.md`.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final, Generic, TypeVar

import anyio

from kitchener.clock import Clock, SystemClock
from kitchener.config import HO3MemoryConfig, LedgerConfig
from kitchener.errors import CallerError
from kitchener.ledger import Ledger, LedgerClient, LedgerEntry
from kitchener.ledger.disk.file_ops import FileOps
from kitchener.ledger.index.index_dirs import index_dir_of
from kitchener.memory.overlay_log import OverlayOperations, entry_base, subject_in
from kitchener.memory.reader import (
    DEFAULT_NAMESPACE,
    OVERLAYS_FILE,
    SIGNALS_FILE,
    check_writable,
    memory_dir,
)
from kitchener.memory.recorded_signals import turn_of_signals
from kitchener.memory.signals import event_id as event_id_of
from kitchener.memory.signals import events_of_turn, has_closed_words, keyed_id, normalise, plain_id
from kitchener.memory.subject_cache import (
    OVERLAYS,
    SIGNALS,
    SubjectCache,
    fold_subject,
    overlay_keys,
    signal_keys,
)
from kitchener.memory.subject_memory import SubjectMemory
from kitchener.memory.subject_traces import ErasureCounts, find_traces
from kitchener.plain_names import quoted
from kitchener.records import events
from kitchener.records.entries import Json, LoggedSignalPayload, SignalPayload, payload_as
from kitchener.sealing import Sealer

_LOOK_BACK: Final = 100
"""Newest signals of a session that are searched for one with a turn id."""
_PAUSE_S: Final = 0.01
"""Seconds between two checks whether an entry of a subject is still being written."""


LedgerT = TypeVar("LedgerT", bound=Ledger)


class SignalOperations(OverlayOperations, Generic[LedgerT]):
    """READ and LOG over two ledgers that the caller has opened."""

    overlays: LedgerT

    def __init__(self, signals: LedgerT, overlays: LedgerT, config: HO3MemoryConfig, clock: Clock) -> None:
        super().__init__(overlays, config, clock)
        self.signals = signals
        self._subjects = SubjectCache(self._fold, self._find_known, config.resident_events)

    @property
    def ledgers(self) -> tuple[LedgerT, LedgerT]:
        """Signals and overlays, for `Ledgers(also=…)`: a turn's commit must cover them."""
        return self.signals, self.overlays

    def stored_id(self, signal_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> str:
        """A signal's id in its stored form: in sealed ledgers, words from outside the closed sets become a keyed digest.

        The same words of the same subject give the same id. The first call for a subject may read or create its key file.
        """
        if has_closed_words(signal_id):
            return signal_id
        return keyed_id(signal_id, partial(self.signals.content_digest, subject_in(namespace)))

    @property
    def last_logged_ts(self) -> str:
        """ISO time of the newest entry of the signals ledger; right after `log_signal`, the time of the logged entry."""
        return self.signals.last_timestamp

    async def subject(self, namespace: str) -> SubjectMemory:
        """The folded memory of a namespace. Do not change it, and use it before the next await."""
        return await self._subjects.get(namespace)

    async def _known(self, namespace: str) -> SubjectMemory:
        # A cached namespace was checked when it was loaded, so this common case skips the check.
        subject = self._subjects.cached(namespace) if type(namespace) is str else None
        return subject if subject is not None else await super()._known(namespace)

    async def _append(self, subject: SubjectMemory, entry_type: str, entity_id: str, fields: Mapping[str, object]) -> None:
        await super()._append(subject, entry_type, entity_id, fields)
        self._subjects.count(subject.namespace)

    async def commit(self) -> None:
        """Returns when everything logged so far is durable. A turn's own commit covers it already."""
        await self.signals.commit()
        await self.overlays.commit()

    async def last_turn_id(self, session_id: str) -> str | None:
        """The turn of a session's newest signal, so that a crash cannot lead to a reused turn number; None: not found."""
        newest = await self.signals.last(session_id=session_id, limit=_LOOK_BACK)
        named = (turn_of_signals(entry) for entry in reversed(newest))  # a program may log signals without a turn
        return next(filter(None, named), None)

    async def log_signal(
        self,
        signal_id: str,
        session_id: str,
        event_id: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        *,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> str:
        """Logs one event of a signal and returns its id. Does not write a known event id again.

        Args:
            signal_id: `kind:value`; characters that a ledger does not accept are replaced
            session_id: the session of the event
            event_id: `EVT-…`; None: derived from session, turn, signal and number
            metadata: JSON types; `turn_id` lets an artifact be traced back to its turns
            namespace: `agent_class/subject_id`, both percent-encoded

        Raises:
            InvalidSignal: the kind is unknown, or nothing is left of the value
            CallerError: an id is not valid
            EntryRefused, EntryTooLarge, LedgerWriteError: the entry cannot be written
        """
        signal_id, session_id = normalise(signal_id, self.kinds), plain_id("session_id", session_id)
        extra, turn_id = _checked(metadata)
        if event_id is not None:
            event_id = plain_id("event_id", event_id, "EVT-")
        subject = await self._known(namespace)
        check_writable(namespace)
        signal_id = subject.in_words(signal_id)
        stored_id = self.stored_id(signal_id, namespace=namespace)
        if event_id is None:
            numbers = count(subject.ordinal(signal_id, session_id, turn_id))
            ids = (event_id_of(session_id, turn_id, stored_id, n) for n in numbers)
            event_id = next(each for each in ids if each not in subject.promised)
        if subject.has_event(event_id):
            return event_id
        payload: LoggedSignalPayload = {
            **entry_base(namespace),
            "event_id": event_id,
            "signal_id": stored_id,
            "session_id": session_id,
            "timestamp": self._timestamps.render(self._clock.time_us()),
            "metadata": extra,
        }
        if stored_id != signal_id:
            payload["words"] = {stored_id: signal_id}
        await self._write_signals(subject, stored_id, payload, {event_id})
        return event_id

    async def log_turn(self, signal_ids: Iterable[str], session_id: str, turn_id: str, *, namespace: str) -> None:
        """Logs the signals of a turn in one entry. Does not write known events again.

        Args:
            signal_ids: `kind:value` of each; a signal may come several times
            session_id: the session
            turn_id: the turn; the ids of the events are derived from it
            namespace: `agent_class/subject_id`, both percent-encoded

        Raises:
            InvalidSignal: a kind is unknown, or nothing is left of a value; nothing is written
            CallerError: an id is not valid
            EntryRefused, EntryTooLarge, LedgerWriteError: the entry cannot be written
        """
        session_id, turn_id = plain_id("session_id", session_id), plain_id("turn_id", turn_id)
        plain = [normalise(each, self.kinds) for each in signal_ids]
        subject = await self._known(namespace)
        check_writable(namespace)
        told = [subject.in_words(each) for each in plain]
        stored = {each: self.stored_id(each, namespace=namespace) for each in told}
        seen = events_of_turn(session_id, turn_id, (stored[each] for each in told))
        fresh = {event_id: each for event_id, each in seen.items() if not subject.has_event(event_id)}
        if not fresh:
            return
        payload: SignalPayload = {
            "v": events.VERSIONS[events.HO3_SIGNAL],
            "namespace": namespace,
            "subject_id": subject_in(namespace),
            "session_id": session_id,
            "turn_id": turn_id,
            "timestamp": self._timestamps.render(self._clock.time_us()),
            "signals": fresh,
        }
        if words := {mine: each for each, mine in stored.items() if mine != each}:
            payload["words"] = words
        await self._write_signals(subject, turn_id, payload, fresh.keys())

    async def _write_signals(
        self,
        subject: SubjectMemory,
        entity_id: str,
        payload: LoggedSignalPayload | SignalPayload,
        event_ids: Collection[str],
    ) -> None:
        subject.pins += 1
        subject.promised.update(event_ids)
        try:
            await self.signals.write(LedgerEntry(events.HO3_SIGNAL, entity_id, payload))
            told = payload_as(SignalPayload, events.read_payload(events.HO3_SIGNAL, payload))
            subject.apply_signals(self.signals.position, self.signals.last_timestamp, told)
        finally:
            subject.promised.difference_update(event_ids)
            subject.pins -= 1
        self._subjects.count(subject.namespace)

    async def erase_subject(
        self, subject_id: str, *, key_id: str, erased_at: str, sessions: Collection[str] = (), namespaces: Collection[str] = ()
    ) -> ErasureCounts:
        """Records that a subject was erased, and deactivates what was learned from the subject. Durable when it returns.

        Call it after the subject's key was destroyed. Does not repeat records that an interrupted erasure has written.

        Args:
            subject_id: the erased subject
            key_id: kid of the destroyed key
            erased_at: ISO time
            sessions: the subject's sessions, whose events may be in other namespaces too
            namespaces: namespaces that may hold the subject's memory, besides those with an overlay of the subject
        """
        async with self._changing:
            traces = await find_traces(subject_id, sessions, namespaces, (self.signals, self.overlays), key_id=key_id)
            for namespace, key in traces.artifacts:
                subject = await self._known(namespace)
                now = self._cut(subject, None, None)
                found = subject.overlay(key, now)
                if found is not None and subject.history(key, now)[-1].entry_type != events.HO3_OVERLAY_DEACTIVATED:
                    await self._deactivate(subject, found, {"erased_subject": subject_id})
            for namespace, event_id in traces.foreign_events:
                subject = await self._known(namespace)
                if event_id not in subject.quarantined(self._cut(subject, None, None)):
                    await self._quarantine(subject, {"target": event_id, "erased_subject": subject_id})
            for ledger, namespace, counts in traces.unrecorded():
                record = {**entry_base(namespace), "key_id": key_id, "erased_at": erased_at, **counts}
                await ledger.write(LedgerEntry(events.SUBJECT_ERASED, subject_id, record))
            await self.commit()
            for namespace in traces.events:
                self._subjects.drop(namespace)
        return traces.found

    async def read_again(self, namespace: str) -> None:
        """Evicts a namespace from memory after something else wrote entries about it to these ledgers."""
        # The pin lasts while one entry is written. Polled, because every turn would have to set an event.
        while (await self._subjects.get(namespace)).pins:  # noqa: ASYNC110
            await anyio.sleep(_PAUSE_S)
        self._subjects.drop(namespace)

    async def _find_known(self, namespaces: Collection[str]) -> set[str]:
        keys = {f"in:{namespace}": namespace for namespace in namespaces}
        known = await self.signals.known_keys(keys) | await self.overlays.known_keys(keys)
        return {keys[key] for key in known}

    async def _fold(self, namespace: str) -> SubjectMemory:
        return await fold_subject(namespace, self.signals, self.overlays)


class HO3Memory(SignalOperations[LedgerClient]):
    """Long-term memory, open for reading and writing. Open it with `HO3Memory.open`."""

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        plane_root: Path | str,
        config: HO3MemoryConfig | None = None,
        *,
        clock: Clock | None = None,
        ledger_config: LedgerConfig | None = None,
        sealer: Sealer | None = None,
        file_ops: FileOps | None = None,
    ) -> AsyncIterator["HO3Memory"]:
        """Opens the memory under a root until the block ends, and then commits pending entries. Creates a missing memory.

        Args:
            plane_root: the directory of all ledgers
            config: thresholds and bounds; None: the defaults
            clock: the time of day; None: the system clock
            ledger_config: durability and bounds of the ledgers; None: the defaults
            sealer: encrypts learned content of subjects; None: it is stored in plain text
            file_ops: the file system; tests replace it

        Raises:
            LedgerError: a ledger is damaged, locked, or cannot be at its path
        """
        config, clock = config or HO3MemoryConfig(), clock or SystemClock()
        where, index = memory_dir(plane_root, config), index_dir_of(plane_root)
        opened = partial(
            LedgerClient.open, config=ledger_config, clock=clock, index_dir=index, sealer=sealer, file_ops=file_ops
        )
        async with (
            opened(where / SIGNALS_FILE, ledger_id=SIGNALS, index_keys=signal_keys) as signals,
            opened(where / OVERLAYS_FILE, ledger_id=OVERLAYS, index_keys=overlay_keys) as overlays,
        ):
            yield cls(signals, overlays, config, clock)

    def configured(self, config: HO3MemoryConfig) -> "HO3Memory":
        """A view of this memory with other thresholds; agent classes share the ledgers but not the settings."""
        other = HO3Memory(self.signals, self.overlays, config, self._clock)
        other._subjects, other._changing = self._subjects, self._changing
        return other


def _checked(metadata: Mapping[str, Json] | None) -> tuple[dict[str, Json], str]:
    """A signal's metadata as a plain dict, and the turn id in it; "": there is none."""
    if metadata is not None and type(metadata) is not dict and not isinstance(metadata, Mapping):
        raise CallerError(f"metadata = {quoted(metadata)}: expected names with values; nothing was written")
    extra = dict(metadata or {})
    turn_id = extra.get("turn_id")
    return extra, plain_id("metadata turn_id", turn_id) if turn_id not in (None, "") else ""
