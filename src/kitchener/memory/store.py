"""HO3Memory: the two ledgers of long-term memory as one object with READ and LOG. It never executes anything.

LOG appends and returns; nothing here starts a task or calls a model. What is read is folded by `subject.py` and kept by
`index.py`. Explained in `docs/memory.md`.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import anyio

from kitchener.canonical import canonical_bytes
from kitchener.clock import Clock, SystemClock, TimestampText
from kitchener.config import HO3MemoryConfig, LedgerConfig
from kitchener.errors import CallerError, OverlayRefused, ProvenanceError, UnknownArtifact
from kitchener.ids import split_namespace
from kitchener.ledger import LedgerClient, LedgerEntry
from kitchener.ledger.files import FileOps
from kitchener.memory.erasing import Erased, find_traces
from kitchener.memory.index import OVERLAYS, SIGNALS, Residents, fold_subject, overlay_keys, signal_keys
from kitchener.memory.moments import text_of, us_of
from kitchener.memory.overlays import (
    Overlay,
    check_complete,
    compute_artifact_id,
    gate_window_key,
    overlay_id,
    parse_older,
    parse_overlay,
)
from kitchener.memory.reading import (
    DEFAULT_NAMESPACE,
    OVERLAYS_FILE,
    SIGNALS_FILE,
    Moment,
    ReadOperations,
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


class HO3Memory(ReadOperations):
    """Long-term memory, open for reading and writing. Open it with `HO3Memory.open`."""

    def __init__(self, signals: LedgerClient, overlays: LedgerClient, config: HO3MemoryConfig, clock: Clock) -> None:
        super().__init__(config, clock)
        self.signals, self.overlays = signals, overlays
        self._timestamps = TimestampText()
        self._residents = Residents(self._fold, self._find_known, config.resident_events)
        self._changing = anyio.Lock()  # what is known of an artifact and what is written about it belong together

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
        return keyed_id(signal_id, partial(self.signals.content_digest, _subject_of(namespace)))

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
            **self._base(namespace),
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

    async def log_overlay(self, overlay: Overlay | Mapping[str, Any], *, namespace: str = DEFAULT_NAMESPACE) -> str:
        """Logs what was learned and returns its overlay id.

        An artifact that is active already is not written again; one that was deactivated becomes active with the new weight.
        A new artifact of a signal deactivates that signal's earlier ones (`supersede_on_renewal`).

        Args:
            overlay: all fields but `overlay_id`, `artifact_id` and `created_at`, which are made where they are missing
            namespace: whose it is; its sources must be events of the same namespace

        Raises:
            ProvenanceError: it names no sources, or events that this namespace does not have, or that are in quarantine
            OverlayRefused: a field is missing or wrong
            InvalidTimestamp: a moment has no zone
        """
        async with self._changing:
            subject = await self._known(namespace)
            check_writable(namespace)
            learned = self._complete(overlay, namespace)
            unknown = [event_id for event_id in learned.source_event_ids if not subject.has_event(event_id)]
            if unknown:
                raise ProvenanceError("source_event_ids", unknown[:5], f"expected events that were logged in {namespace!r}")
            cut = self._cut(subject, None, None)
            # A consolidation may have been under way when somebody put its source in quarantine.
            excluded = _in_quarantine(learned, subject, subject.quarantined(cut))
            if excluded:
                raise ProvenanceError("source_event_ids", excluded[:5], "expected events that are not in quarantine")
            existing = subject.overlay(learned.key, cut)
            if existing is not None and not existing.is_erased:
                if not existing.enabled:
                    await self._change(
                        subject,
                        existing,
                        events.HO3_OVERLAY_WEIGHT_UPDATED,
                        {"weight": learned.weight, "reason": "logged again"},
                    )
                return existing.overlay_id
            earlier = [
                each for each in subject.overlays(cut, learned.signal_id) if each.enabled and each.artifact_id is not None
            ]
            await self._append(subject, events.HO3_OVERLAY, learned.overlay_id, _stored(learned))
            if self.config.supersede_on_renewal:
                for each in earlier:
                    fields = {"reason": "superseded", "superseded_by": learned.key}
                    await self._change(subject, each, events.HO3_OVERLAY_DEACTIVATED, fields)
            return learned.overlay_id

    async def deactivate_overlay(
        self, artifact_id: str, reason: str, event_ts: Moment, *, block: bool = False, namespace: str = DEFAULT_NAMESPACE
    ) -> str:
        """Takes an artifact out of use and returns its overlay id; it stays in the ledger.

        Args:
            artifact_id: `ART-…`
            reason: why, for whoever asks later
            event_ts: when it was decided
            block: also keep its signal from being learned from again
            namespace: whose it is

        Raises:
            UnknownArtifact: the namespace has no such artifact
            InvalidTimestamp: `event_ts` has no zone
        """
        fields: dict[str, Any] = {"reason": reason, "event_ts": text_of(us_of(event_ts, "event_ts"))}
        if block:
            fields["block_signal"] = True
        return await self._decide(namespace, artifact_id, events.HO3_OVERLAY_DEACTIVATED, fields)

    async def update_overlay_weight(
        self, artifact_id: str, new_weight: float, reason: str, event_ts: Moment, *, namespace: str = DEFAULT_NAMESPACE
    ) -> str:
        """Gives an artifact another weight, 0 to 1, and returns its overlay id; a deactivated one is active again.

        Raises:
            UnknownArtifact: the namespace has no such artifact
            OverlayRefused: the weight is not within 0 and 1
            InvalidTimestamp: `event_ts` has no zone
        """
        if isinstance(new_weight, bool) or not isinstance(new_weight, int | float) or not 0 <= new_weight <= 1:
            raise OverlayRefused("weight", new_weight, "expected a number from 0 to 1")
        fields = {"weight": new_weight, "reason": reason, "event_ts": text_of(us_of(event_ts, "event_ts"))}
        return await self._decide(namespace, artifact_id, events.HO3_OVERLAY_WEIGHT_UPDATED, fields)

    async def quarantine(self, target: str, reason: str, *, namespace: str = DEFAULT_NAMESPACE) -> list[Overlay]:
        """Keeps a signal, or one event, from counting from now on; returns the artifacts that lose their support.

        Those are deactivated with it: what is left of their sources would not open their gate.

        Args:
            target: a signal id, or `EVT-…`
            reason: why, for whoever asks later
            namespace: whose it is

        Raises:
            CallerError: the namespace has no such signal or event
        """
        async with self._changing:
            subject = await self._known(namespace)
            if not isinstance(target, str) or not target.startswith("EVT-"):
                target = self._asked(subject, target)
            if not subject.has_event(target) and target not in subject.signal_ids():
                raise CallerError(f"{target!r} is neither a signal nor an event of {namespace!r}; nothing was written")
            before = self._cut(subject, None, None)
            if target in subject.quarantined(before):
                return []
            shown = [each for each in subject.overlays(before) if each.enabled and _rests_on(each, target, subject)]
            await self._append(subject, events.HO3_QUARANTINED, target, {"target": target, "reason": reason})
            after = self._cut(subject, None, None)
            lost = [each for each in shown if not subject.has_support(each, after, self.config)]
            for each in lost:
                await self._change(subject, each, events.HO3_OVERLAY_DEACTIVATED, {"reason": "quarantined", "target": target})
            return lost

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
                record = {**self._base(namespace), "key_id": key_id, "erased_at": erased_at, **counts}
                await ledger.write(LedgerEntry(events.SUBJECT_ERASED, subject_id, record))
            await self.commit()
            for namespace in traces.events:
                self._residents.drop(namespace)
        return traces.found

    async def import_overlays(self, records: Iterable[Mapping[str, Any]], *, namespace: str = DEFAULT_NAMESPACE) -> list[str]:
        """Takes over overlays of the older flat shape and returns their ids; those that are known already are left out.

        They keep their categories, and sources that no ledger knows are marked as unverified. Either all are written or none.

        Raises:
            ProvenanceError: one has no sources
            OverlayRefused, InvalidTimestamp, InvalidSignal, EntryRefused: one has a field that is wrong
        """
        async with self._changing:
            subject = await self._known(namespace)
            check_writable(namespace)
            taken: dict[str, dict[str, Any]] = {}
            for record in records:
                overlay = parse_older(record, self.config.max_line_chars)
                unverified = tuple(each for each in overlay.source_event_ids if not subject.has_event(each))
                overlay = overlay.model_copy(
                    update={"signal_id": normalise(overlay.signal_id, self.kinds), "unverified_event_ids": unverified}
                )
                fields = _stored(overlay)
                self._check_fits(fields)
                if not subject.history(overlay.key):
                    taken.setdefault(overlay.key, fields)
            for overlay_id, fields in taken.items():
                await self._append(subject, events.HO3_OVERLAY, overlay_id, fields)
            return list(taken)

    def _check_fits(self, fields: Mapping[str, Any]) -> None:
        """Finds out before anything is written whether the ledger would take it."""
        size, limit = len(canonical_bytes(dict(fields), at="overlay")), self.overlays.config.max_entry_bytes // 2
        if size > limit:  # half, because sealed text is longer
            raise OverlayRefused("content", f"{size} bytes", f"expected at most {limit} bytes, half of max_entry_bytes")

    def _complete(self, overlay: Overlay | Mapping[str, Any], namespace: str) -> Overlay:
        """The overlay with the fields that are derived, checked."""
        given = overlay.as_mapping() if isinstance(overlay, Overlay) else overlay
        if isinstance(given, Mapping):
            made = {"overlay_id": "", "created_at": self._timestamps.render(self._clock.time_us())}
            given = {**given, **{name: value for name, value in made.items() if given.get(name) is None}}
        learned = parse_overlay(given)
        signal_id = normalise(learned.signal_id, self.kinds)
        check_complete(learned, self.config.max_line_chars)
        key = gate_window_key(str(learned.window_end), self.config.gate_window_hours)
        by = str(learned.model), str(learned.prompt_pack_version)
        sources = tuple(self.stored_id(each, namespace=namespace) for each in learned.source_signal_ids)
        artifact_id = learned.artifact_id or compute_artifact_id(sources, key, *by)
        ids = {"artifact_id": artifact_id, "overlay_id": learned.overlay_id or overlay_id(namespace, artifact_id)}
        return learned.model_copy(update={"signal_id": signal_id, **ids})

    async def _decide(self, namespace: str, artifact_id: str, entry_type: str, fields: Mapping[str, Any]) -> str:
        """Records what somebody decided about an artifact; returns its overlay id."""
        async with self._changing:
            subject = await self._known(namespace)
            found = subject.overlay(artifact_id, self._cut(subject, None, None))
            if found is None or found.artifact_id != artifact_id:  # the older shape has no identity: it can only fade
                raise UnknownArtifact(artifact_id, namespace)
            await self._change(subject, found, entry_type, fields)
            return found.overlay_id

    async def _change(self, subject: SubjectMemory, overlay: Overlay, entry_type: str, fields: Mapping[str, Any]) -> None:
        ids = {"artifact_id": overlay.key, "overlay_id": overlay.overlay_id}
        await self._append(subject, entry_type, overlay.overlay_id, {**ids, **fields})

    async def _append(self, subject: SubjectMemory, entry_type: str, entity_id: str, fields: Mapping[str, Any]) -> None:
        payload = self._keyed({**self._base(subject.namespace), **fields})
        entity_id = payload["target"] if entry_type == events.HO3_QUARANTINED else entity_id
        subject.pins += 1
        try:
            ref = await self.overlays.write(LedgerEntry(entry_type, entity_id, payload))
            told = events.in_words(payload)
            subject.apply_overlay(self.overlays.position, self.overlays.last_timestamp, entry_type, told, ref)
        finally:
            subject.pins -= 1

    def _keyed(self, payload: dict[str, Any]) -> dict[str, Any]:
        """A payload with the signal ids that its ledger holds, and the words that they stand for."""
        named = [payload.get("signal_id"), payload.get("target"), *payload.get("source_signal_ids", ())]
        stored = {each: self.stored_id(each, namespace=payload["namespace"]) for each in named if _is_signal(each)}
        words = {mine: each for each, mine in stored.items() if mine != each}
        if not words:
            return payload
        return {**events.with_signals(payload, stored), "words": words}

    async def _find_known(self, namespaces: Collection[str]) -> set[str]:
        keys = {f"in:{namespace}": namespace for namespace in namespaces}
        known = await self.signals.known_keys(keys) | await self.overlays.known_keys(keys)
        return {keys[key] for key in known}

    async def _fold(self, namespace: str) -> SubjectMemory:
        return await fold_subject(namespace, self.signals, self.overlays)

    @staticmethod
    def _base(namespace: str) -> dict[str, Any]:
        return {"v": events.VERSION, "namespace": namespace, "subject_id": _subject_of(namespace)}


@lru_cache(4_096)  # each signal of a turn asks
def _subject_of(namespace: str) -> str:
    return split_namespace(namespace)[1]


def _is_signal(target: object) -> bool:
    return isinstance(target, str) and not target.startswith("EVT-")


def _checked(metadata: Mapping[str, Any] | None) -> tuple[dict[str, Any], str]:
    """A signal's metadata as they are stored, and the turn that they name, "" where they name none."""
    if metadata is not None and type(metadata) is not dict and not isinstance(metadata, Mapping):
        raise CallerError(f"metadata = {metadata!r:.80}: expected names with values; nothing was written")
    extra = dict(metadata or {})
    turn_id = extra.get("turn_id")
    return extra, known_id("metadata turn_id", turn_id) if turn_id not in (None, "") else ""


def _stored(overlay: Overlay) -> dict[str, Any]:
    """An overlay as it stands in the ledger: what the older shape does not have stays away."""
    fields = overlay.model_dump(mode="json", exclude_none=True)
    return fields if overlay.artifact_id is None else {"expires_at_event_ts": None, **fields}


def _in_quarantine(overlay: Overlay, subject: SubjectMemory, without: Collection[str]) -> list[str]:
    """The sources of an overlay that no longer count."""
    if not without:
        return []
    if overlay.signal_id in without:
        return list(overlay.source_event_ids)
    found = ((each, subject.event(each)) for each in overlay.source_event_ids)
    return [each for each, event in found if each in without or (event is not None and event[0] in without)]


def _rests_on(overlay: Overlay, target: str, subject: SubjectMemory) -> bool:
    """Whether a signal or an event is among the sources of an artifact."""
    if target in overlay.source_event_ids or target in overlay.source_signal_ids or target == overlay.signal_id:
        return True
    return any((found := subject.event(each)) is not None and found[0] == target for each in overlay.source_event_ids)
