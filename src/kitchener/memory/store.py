"""HO3Memory: the two ledgers of long-term memory as one object with READ and LOG. It never executes anything.

LOG appends and returns; nothing here starts a task or calls a model. Signals are logged here, learned lines in `learned.py`;
what is read is folded by `subject.py` and kept by `index.py`. Explained in `docs/memory.md`.
"""

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from kitchener.clock import Clock, SystemClock
from kitchener.config import HO3MemoryConfig, LedgerConfig
from kitchener.errors import CallerError
from kitchener.ledger import LedgerClient, LedgerEntry
from kitchener.ledger.disk.file_ops import FileOps
from kitchener.memory.erasure import Erased, find_traces
from kitchener.memory.index import OVERLAYS, SIGNALS, Residents, fold_subject, overlay_keys, signal_keys
from kitchener.memory.learned import OverlayOperations, entry_base, subject_of
from kitchener.memory.reader import (
    DEFAULT_NAMESPACE,
    OVERLAYS_FILE,
    SIGNALS_FILE,
    check_writable,
    memory_dir,
)
from kitchener.memory.signals import event_id as event_id_of
from kitchener.memory.signals import has_closed_words, keyed_id, known_id, normalise, plain_id
from kitchener.memory.subject import SubjectMemory
from kitchener.records import events
from kitchener.sealing import Sealer

_LOOK_BACK: Final = 100
"""Signals of a session among which the one of its newest turn is looked for."""


class HO3Memory(OverlayOperations):
    """Long-term memory, open for reading and writing. Open it with `HO3Memory.open`."""

    def __init__(self, signals: LedgerClient, overlays: LedgerClient, config: HO3MemoryConfig, clock: Clock) -> None:
        super().__init__(overlays, config, clock)
        self.signals = signals
        self._residents = Residents(self._fold, self._find_known, config.resident_events)

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
        """The memory under a root, made if it is not there, until the block is left; what is pending is committed then.

        Args:
            plane_root: the directory of all ledgers
            config: thresholds and bounds
            clock: the time of day; None: the machine's
            ledger_config: durability and bounds of the ledgers
            sealer: seals what was learned from subjects; None: it is stored plainly
            file_ops: the file system, for tests

        Raises:
            LedgerError: a ledger is damaged, locked, or cannot be there
        """
        config, clock = config or HO3MemoryConfig(), clock or SystemClock()
        where, index = memory_dir(plane_root, config), Path(plane_root) / "index"
        shared: dict[str, Any] = {
            "config": ledger_config,
            "clock": clock,
            "index_dir": index,
            "sealer": sealer,
            "file_ops": file_ops,
        }
        async with (
            LedgerClient.open(where / SIGNALS_FILE, ledger_id=SIGNALS, index_keys=signal_keys, **shared) as signals,
            LedgerClient.open(where / OVERLAYS_FILE, ledger_id=OVERLAYS, index_keys=overlay_keys, **shared) as overlays,
        ):
            yield cls(signals, overlays, config, clock)

    def configured(self, config: HO3MemoryConfig) -> "HO3Memory":
        """The same memory under other thresholds: agent classes share the ledgers and not their settings."""
        other = HO3Memory(self.signals, self.overlays, config, self._clock)
        other._residents, other._changing = self._residents, self._changing
        return other

    def stored_id(self, signal_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> str:
        """A signal's id as the ledgers hold it: where they are sealed, words that are not of a closed set are keyed.

        The same words of the same subject give the same id. May read or make the subject's key file, once.
        """
        if has_closed_words(signal_id):
            return signal_id
        return keyed_id(signal_id, partial(self.signals.content_digest, subject_of(namespace)))

    @property
    def ledgers(self) -> tuple[LedgerClient, LedgerClient]:
        """Signals and overlays, for `Ledgers(also=…)`: a turn's commit covers them."""
        return self.signals, self.overlays

    @property
    def last_logged_ts(self) -> str:
        """ISO time of the newest entry of the signals ledger; read it right after `log_signal` for that entry's."""
        return self.signals.last_timestamp

    async def subject(self, namespace: str) -> SubjectMemory:
        """Everything known of a namespace, folded. For reading only; use it before the next wait."""
        return await self._residents.get(namespace)

    async def _known(self, namespace: str) -> SubjectMemory:
        # One that is in use was checked when it came; a turn asks nine times.
        subject = self._residents.at_hand(namespace) if type(namespace) is str else None
        return subject if subject is not None else await super()._known(namespace)

    async def commit(self) -> None:
        """Returns when everything logged so far is durable. A turn's own commit covers it already."""
        await self.signals.commit()
        await self.overlays.commit()

    async def last_turn_id(self, session_id: str) -> str | None:
        """The turn of the newest signal of a session, so that its number is not given out again after a crash."""
        newest = await self.signals.last(session_id=session_id, limit=_LOOK_BACK)
        for entry in reversed(newest):  # a program may log signals of a session beside its turns
            metadata = entry.payload.get("metadata")
            turn_id = metadata.get("turn_id") if isinstance(metadata, dict) else None
            if isinstance(turn_id, str):
                return turn_id
        return None

    async def log_signal(
        self,
        signal_id: str,
        session_id: str,
        event_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> str:
        """Logs one event of a signal and returns its id. An id that is known already is not written again.

        Args:
            signal_id: `kind:value`; made to fit the grammar of signal ids
            session_id: in which session it came
            event_id: `EVT-…`; None: derived from session, turn, signal and number
            metadata: JSON types; `turn_id` lets an artifact be explained back to its turns
            namespace: `agent_class/subject_id`, both percent-encoded

        Raises:
            InvalidSignal: its kind is unknown, or nothing is left of its value
            CallerError: an id is none
            EntryRefused, EntryTooLarge, LedgerWriteError: it cannot be written
        """
        signal_id, session_id = normalise(signal_id, self.kinds), known_id("session_id", session_id)
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
        payload = {
            **entry_base(namespace),
            "event_id": event_id,
            "signal_id": stored_id,
            "session_id": session_id,
            "timestamp": self._timestamps.render(self._clock.time_us()),
            "metadata": extra,
        }
        if stored_id != signal_id:
            payload["words"] = {stored_id: signal_id}
        subject.pins += 1
        subject.promised.add(event_id)
        try:
            await self.signals.write(LedgerEntry(events.HO3_SIGNAL, stored_id, payload))
            known = subject.event_count
            subject.apply_signal(self.signals.position, self.signals.last_timestamp, events.in_words(payload))
        finally:
            subject.promised.discard(event_id)
            subject.pins -= 1
        self._residents.grown(subject.event_count - known)
        return event_id

    async def erase_subject(
        self, subject_id: str, *, key_id: str, erased_at: str, sessions: Collection[str] = (), namespaces: Collection[str] = ()
    ) -> Erased:
        """Records that a subject was erased, and withdraws what was learned from them. Durable when it returns.

        For after the subject's key was destroyed. What is on record already is not written again.

        Args:
            subject_id: who
            key_id: the destroyed key's kid
            erased_at: ISO time
            sessions: the subject's, whose events may have been logged in other namespaces too
            namespaces: where the subject's memory may be, beside those in which something was learned
        """
        fields = {"erased_subject": subject_id}
        async with self._changing:
            traces = await find_traces(subject_id, sessions, namespaces, self.ledgers, key_id=key_id)
            for namespace, key in traces.artifacts:
                subject = await self._known(namespace)
                history, found = subject.history(key), subject.overlay(key, self._cut(subject, None, None))
                if found is not None and history[-1].entry_type != events.HO3_OVERLAY_DEACTIVATED:
                    await self._change(subject, found, events.HO3_OVERLAY_DEACTIVATED, fields)
            for namespace, event_id in traces.foreign_events:
                subject = await self._known(namespace)
                if event_id not in subject.quarantined(self._cut(subject, None, None)):
                    await self._append(subject, events.HO3_QUARANTINED, event_id, {"target": event_id, **fields})
            for ledger, namespace, counts in traces.unrecorded():
                record = {**entry_base(namespace), "key_id": key_id, "erased_at": erased_at, **counts}
                await ledger.write(LedgerEntry(events.SUBJECT_ERASED, subject_id, record))
            await self.commit()
            for namespace in traces.events:
                self._residents.drop(namespace)
        return traces.found

    async def _find_known(self, namespaces: Collection[str]) -> set[str]:
        keys = {f"in:{namespace}": namespace for namespace in namespaces}
        known = await self.signals.known_keys(keys) | await self.overlays.known_keys(keys)
        return {keys[key] for key in known}

    async def _fold(self, namespace: str) -> SubjectMemory:
        return await fold_subject(namespace, self.signals, self.overlays)


def _checked(metadata: Mapping[str, Any] | None) -> tuple[dict[str, Any], str]:
    """A signal's metadata as they are stored, and the turn that they name, "" where they name none."""
    if metadata is not None and type(metadata) is not dict and not isinstance(metadata, Mapping):
        raise CallerError(f"metadata = {metadata!r:.80}: expected names with values; nothing was written")
    extra = dict(metadata or {})
    turn_id = extra.get("turn_id")
    return extra, known_id("metadata turn_id", turn_id) if turn_id not in (None, "") else ""
