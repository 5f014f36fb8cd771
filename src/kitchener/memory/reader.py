"""READ: answers which signals recur for a subject and what was learned from them, as of any moment.

`MemoryReader` reads ledgers that another process may write, and folds again at every call. `HO3Memory` in `store.py` owns the
ledgers and caches its folded subjects. Explained in `docs/memory.md`.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

from kitchener.clock import Clock, SystemClock
from kitchener.config import SIGNAL_KINDS, HO3MemoryConfig
from kitchener.errors import CallerError
from kitchener.ids import check_subject_id, split_namespace
from kitchener.ledger import LedgerReader, StoredEntry
from kitchener.ledger.format.lines import NO_END
from kitchener.ledger.index.index_dirs import index_dir_of
from kitchener.memory.gate import GateResult
from kitchener.memory.overlays import Overlay
from kitchener.memory.signals import Cut, RecordedEvent, SignalAccumulator, normalise
from kitchener.memory.subject_cache import (
    OVERLAYS,
    SIGNALS,
    artifact_key,
    fold_subject,
    namespace_of,
    overlay_keys,
    signal_keys,
)
from kitchener.memory.subject_memory import SubjectMemory
from kitchener.memory.timestamps import us_of
from kitchener.plain_names import is_printable, quoted
from kitchener.records import events
from kitchener.records.entries import OverlayWeightPayload, payload_as
from kitchener.records.ref import Ref
from kitchener.sealing import Sealer

SIGNALS_FILE: Final = "signals.jsonl"
OVERLAYS_FILE: Final = "overlays.jsonl"
DEFAULT_NAMESPACE: Final = "default"
_MAX_NAMESPACE: Final = 16_384
"""Longest namespace, characters; more than the longest subject id needs, percent-encoded, with its agent class."""

TimeInput = datetime | str
"""An aware datetime, or ISO text with a zone."""


def memory_dir(plane_root: Path | str, config: HO3MemoryConfig) -> Path:
    """The directory of the memory's ledgers."""
    return Path(config.memory_dir) if config.memory_dir is not None else Path(plane_root) / "HOT" / "memory"


def record_facts(entry: StoredEntry, *names: str) -> dict[str, object]:
    """Type, time and weight of an entry of the memory's ledgers, and these fields of its payload, as JSON types."""
    payload = events.read_payload(entry.entry_type, entry.payload)
    facts: dict[str, object] = {name: payload[name] for name in names if name in payload}
    change = payload_as(OverlayWeightPayload, payload)
    if "new_weight" in change:
        facts["weight"] = change["new_weight"]
    return {"entry_type": entry.entry_type, "at": entry.timestamp, **facts}


def check_writable(namespace: str) -> None:
    """Raises CallerError if a namespace's subject id is not valid. Entries of such a subject in an older root can be erased."""
    try:
        check_subject_id(split_namespace(namespace)[1])
    except CallerError as error:
        raise CallerError(f"namespace = {quoted(namespace)}: {error}; nothing was written") from None


class ReadOperations(ABC):
    """The READ half of the memory; subclasses provide the folded subject."""

    def __init__(self, config: HO3MemoryConfig, clock: Clock) -> None:
        self.config = config
        self._clock = clock
        self.kinds = frozenset((*SIGNAL_KINDS, *config.custom_kinds))
        """The allowed kinds of signals."""

    @abstractmethod
    async def subject(self, namespace: str) -> SubjectMemory:
        """Everything known of a namespace, folded. For reading only; use it before the next wait."""

    async def read_signals(
        self,
        signal_id: str | None = None,
        min_count: int = 0,
        as_of_ts: TimeInput | None = None,
        *,
        up_to: Mapping[str, int] | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[SignalAccumulator]:
        """The counts of a namespace's signals, by signal id.

        Args:
            signal_id: only this signal; None: all
            min_count: only signals with at least this many events
            as_of_ts: later entries are ignored, and decay is computed up to this moment; None: now
            up_to: positions by ledger id; later entries are ignored, whatever their time
            namespace: `agent_class/subject_id`, both percent-encoded
        """
        subject = await self._known(namespace)
        cut, half_life = self._cut(subject, as_of_ts, up_to), self.config.decay_half_life_hours
        if signal_id is None:
            found = list(subject.accumulators(cut, half_life))
        else:
            one = subject.accumulate(self._signal_in_words(subject, signal_id), cut, half_life)
            found = [] if one is None else [one]
        return [each for each in found if each.count >= min_count]

    async def check_gate(
        self,
        signal_id: str,
        as_of_ts: TimeInput | None = None,
        *,
        up_to: Mapping[str, int] | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> GateResult:
        """The verdict on a signal's gate; arguments as in `read_signals`."""
        subject = await self._known(namespace)
        return subject.gate(self._signal_in_words(subject, signal_id), self._cut(subject, as_of_ts, up_to), self.config)

    async def read_events(
        self,
        event_ids: Iterable[str],
        as_of_ts: TimeInput | None = None,
        *,
        up_to: Mapping[str, int] | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[RecordedEvent]:
        """Events by id, oldest first, with the other signals of their turns; ids that the namespace lacks are left out."""
        subject = await self._known(namespace)
        return subject.recorded(event_ids, self._cut(subject, as_of_ts, up_to))

    async def read_overlays(
        self,
        signal_id: str | None = None,
        active_only: bool = True,
        as_of_ts: TimeInput | None = None,
        *,
        up_to: Mapping[str, int] | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[Overlay]:
        """The artifacts of a namespace, in the order of the ledger; `active_only` leaves out deactivated ones."""
        subject = await self._known(namespace)
        wanted = None if signal_id is None else self._signal_in_words(subject, signal_id)
        found = subject.overlays(self._cut(subject, as_of_ts, up_to), wanted)
        return [each for each in found if each.enabled or not active_only]

    async def read_refs(self, keys: Iterable[str], *, namespace: str = DEFAULT_NAMESPACE) -> dict[str, tuple[Ref, str]]:
        """The newest entry of each artifact's overlay, and its time, by artifact id; unknown ids are left out."""
        subject = await self._known(namespace)
        return {key: found for key in keys if (found := subject.overlay_refs.get(key)) is not None}

    async def read_active_biases(
        self,
        as_of_ts: TimeInput | None = None,
        *,
        up_to: Mapping[str, int] | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[Overlay]:
        """The artifacts in use: enabled, not expired, and not decayed below `salience_floor`."""
        subject = await self._known(namespace)
        cut, config = self._cut(subject, as_of_ts, up_to), self.config
        return [
            each
            for each in subject.overlays(cut)
            if each.enabled
            and not each.is_expired(cut.as_of_us)
            and each.salience(cut.as_of_us, config.decay_half_life_hours) >= config.salience_floor
        ]

    async def snapshot(
        self,
        as_of_ts: TimeInput | None = None,
        *,
        up_to: Mapping[str, int] | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> tuple[SubjectMemory, Cut]:
        """The folded memory of a namespace, and the cut for the arguments of `read_signals`, for many questions at once.

        Do not change the memory, and use it before the next await.
        """
        subject = await self._known(namespace)
        return subject, self._cut(subject, as_of_ts, up_to)

    async def _known(self, namespace: str) -> SubjectMemory:
        if not is_printable(namespace, _MAX_NAMESPACE):
            raise CallerError(f"namespace = {quoted(namespace)}: expected 1 to {_MAX_NAMESPACE} printable characters")
        return await self.subject(namespace)

    def _signal_in_words(self, subject: SubjectMemory, signal_id: str) -> str:
        """A caller's signal id in words; callers may pass the stored, keyed form."""
        return subject.in_words(normalise(signal_id, self.kinds))

    def _cut(self, subject: SubjectMemory, as_of_ts: TimeInput | None, up_to: Mapping[str, int] | None) -> Cut:
        # After a clock steps back, the newest entries must stay visible.
        as_of_us = max(self._clock.time_us(), subject.last_us) if as_of_ts is None else us_of(as_of_ts, "as_of_ts")
        if up_to is None:
            return Cut(as_of_us, NO_END, NO_END)
        return Cut(as_of_us, up_to.get(SIGNALS, NO_END), up_to.get(OVERLAYS, NO_END))


class MemoryReader(ReadOperations):
    """The memory of a root, for reading only, without a lock and beside a writer. Open it with `MemoryReader.open`."""

    def __init__(self, signals: LedgerReader, overlays: LedgerReader, config: HO3MemoryConfig, clock: Clock) -> None:
        super().__init__(config, clock)
        self.signals: LedgerReader = signals
        self.overlays: LedgerReader = overlays

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        plane_root: Path | str,
        config: HO3MemoryConfig | None = None,
        *,
        clock: Clock | None = None,
        sealer: Sealer | None = None,
    ) -> AsyncIterator["MemoryReader"]:
        """Opens the memory under a root until the block ends.

        Raises:
            LedgerPathError: there is no memory, or it cannot be read
            LedgerDamaged: earlier data does not verify
        """
        config = config or HO3MemoryConfig()
        where, index = memory_dir(plane_root, config), index_dir_of(plane_root)
        async with (
            LedgerReader.open(
                where / SIGNALS_FILE, ledger_id=SIGNALS, index_dir=index, index_keys=signal_keys, sealer=sealer
            ) as signals,
            LedgerReader.open(
                where / OVERLAYS_FILE, ledger_id=OVERLAYS, index_dir=index, index_keys=overlay_keys, sealer=sealer
            ) as overlays,
        ):
            yield cls(signals, overlays, config, clock or SystemClock())

    async def subject(self, namespace: str) -> SubjectMemory:
        """The memory of a namespace, folded again from its present entries."""
        return await fold_subject(namespace, self.signals, self.overlays)

    async def namespaces_of(self, artifact_id: str) -> list[str]:
        """The namespaces with an artifact of this id, in the order of their first record."""
        found = [namespace_of(entry) async for entry in self.overlays.read(key=artifact_key(artifact_id))]
        return list(dict.fromkeys(found))

    async def read_records(self, artifact_id: str, *, namespace: str) -> list[StoredEntry]:
        """All entries about an artifact, overlay and later changes, oldest first."""
        found = [entry async for entry in self.overlays.read(key=artifact_key(artifact_id))]
        return [entry for entry in found if namespace_of(entry) == namespace]

    async def read_quarantines(self, *, namespace: str) -> list[StoredEntry]:
        """The entries that put signals and events of a namespace in quarantine, oldest first."""
        (key,) = overlay_keys(events.HO3_QUARANTINED, {"namespace": namespace})
        return [entry async for entry in self.overlays.read(key=key, entry_type=events.HO3_QUARANTINED)]
