"""LOG of learned lines: appends overlays and decisions about them to the overlays ledger.

`store.py` logs signals and combines both halves; `overlays.py` defines and checks overlays. Explained in `docs/memory.md`.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import TypeGuard

import anyio

from kitchener.canonical import canonical_bytes
from kitchener.clock import Clock, TimestampText
from kitchener.config import HO3MemoryConfig
from kitchener.errors import CallerError, OverlayRefused, ProvenanceError, UnknownArtifact
from kitchener.ids import split_namespace
from kitchener.ledger import Ledger, LedgerEntry
from kitchener.memory.overlays import (
    Overlay,
    check_complete,
    compute_artifact_id,
    gate_window_key,
    overlay_id,
    parse_older,
    parse_overlay,
)
from kitchener.memory.reader import DEFAULT_NAMESPACE, ReadOperations, TimeInput, check_writable
from kitchener.memory.signals import normalise
from kitchener.memory.subject_memory import SubjectMemory
from kitchener.memory.timestamps import us_of
from kitchener.records import events
from kitchener.records.entries import MemoryPayload, OverlayDeactivatedPayload, OverlayWeightPayload, QuarantinePayload
from kitchener.times import iso_of


class OverlayOperations(ReadOperations):
    """READ, and the LOG of learned lines; the subclass provides the folded subject."""

    def __init__(self, overlays: Ledger, config: HO3MemoryConfig, clock: Clock) -> None:
        super().__init__(config, clock)
        self.overlays = overlays
        self._timestamps = TimestampText()
        self._changing = anyio.Lock()  # held from reading an artifact's state until the decision about it is written

    @abstractmethod
    def stored_id(self, signal_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> str:
        """A signal's id in its stored form."""

    async def log_overlay(self, overlay: Overlay | Mapping[str, object], *, namespace: str = DEFAULT_NAMESPACE) -> str:
        """Logs an overlay and returns its overlay id.

        Does not write an active artifact again. A deactivated artifact becomes active with the new weight. A new artifact of a
        signal deactivates that signal's earlier ones (`supersede_on_renewal`).

        Args:
            overlay: all fields; a missing `overlay_id`, `artifact_id` or `created_at` is derived
            namespace: owner of the artifact; its sources must be events of the same namespace

        Raises:
            ProvenanceError: it names no sources, or sources that are not in this namespace or are in quarantine
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
            # An operator may put a source in quarantine while a consolidation runs.
            excluded = _in_quarantine(learned, subject, subject.quarantined(cut))
            if excluded:
                raise ProvenanceError("source_event_ids", excluded[:5], "expected events that are not in quarantine")
            existing = subject.overlay(learned.key, cut)
            if existing is not None and not existing.is_erased:
                if not existing.enabled:
                    await self._set_weight(subject, existing, {"new_weight": learned.weight, "reason": "logged again"})
                return existing.overlay_id
            earlier = [
                each for each in subject.overlays(cut, learned.signal_id) if each.enabled and each.artifact_id is not None
            ]
            await self._append(subject, events.HO3_OVERLAY, learned.overlay_id, _stored(learned))
            if self.config.supersede_on_renewal:
                for each in earlier:
                    await self._deactivate(subject, each, {"reason": "superseded", "superseded_by": learned.key})
            return learned.overlay_id

    async def deactivate_overlay(
        self, artifact_id: str, reason: str, event_ts: TimeInput, *, block: bool = False, namespace: str = DEFAULT_NAMESPACE
    ) -> str:
        """Deactivates an artifact and returns its overlay id; its entries stay in the ledger.

        Args:
            artifact_id: `ART-…`
            reason: the reason, for the record
            event_ts: time of the decision
            block: also stop consolidation from learning from its signal again
            namespace: owner of the artifact

        Raises:
            UnknownArtifact: the namespace has no such artifact
            InvalidTimestamp: `event_ts` has no zone
        """
        fields: OverlayDeactivatedPayload = {"reason": reason, "event_ts": iso_of(us_of(event_ts, "event_ts"))}
        if block:
            fields["block_signal"] = True
        async with self._changing:
            subject, found = await self._find(namespace, artifact_id)
            await self._deactivate(subject, found, fields)
            return found.overlay_id

    async def update_overlay_weight(
        self, artifact_id: str, new_weight: float, reason: str, event_ts: TimeInput, *, namespace: str = DEFAULT_NAMESPACE
    ) -> str:
        """Sets the weight of an artifact, 0 to 1, and returns its overlay id; activates a deactivated artifact.

        Raises:
            UnknownArtifact: the namespace has no such artifact
            OverlayRefused: the weight is not within 0 and 1
            InvalidTimestamp: `event_ts` has no zone
        """
        if isinstance(new_weight, bool) or not isinstance(new_weight, int | float) or not 0 <= new_weight <= 1:
            raise OverlayRefused("weight", new_weight, "expected a number from 0 to 1")
        event_time = iso_of(us_of(event_ts, "event_ts"))
        async with self._changing:
            subject, found = await self._find(namespace, artifact_id)
            await self._set_weight(subject, found, {"new_weight": new_weight, "reason": reason, "event_ts": event_time})
            return found.overlay_id

    async def quarantine(self, target: str, reason: str, *, namespace: str = DEFAULT_NAMESPACE) -> list[Overlay]:
        """Excludes a signal or one event from all counts, and returns the artifacts that it deactivates.

        Deactivates every artifact whose remaining sources would not open its gate.

        Args:
            target: a signal id, or `EVT-…`
            reason: the reason, for the record
            namespace: owner of the signal or event

        Raises:
            CallerError: the namespace has no such signal or event
        """
        async with self._changing:
            subject = await self._known(namespace)
            if not isinstance(target, str) or not target.startswith("EVT-"):
                target = self._signal_in_words(subject, target)
            if not subject.has_event(target) and target not in subject.signal_ids():
                raise CallerError(f"{target!r} is neither a signal nor an event of {namespace!r}; nothing was written")
            before = self._cut(subject, None, None)
            if target in subject.quarantined(before):
                return []
            shown = [each for each in subject.overlays(before) if each.enabled and _rests_on(each, target, subject)]
            await self._quarantine(subject, {"target": target, "reason": reason})
            after = self._cut(subject, None, None)
            lost = [each for each in shown if not subject.has_support(each, after, self.config)]
            for each in lost:
                await self._deactivate(subject, each, {"reason": "quarantined", "target": target})
            return lost

    async def import_overlays(
        self, records: Iterable[Mapping[str, object]], *, namespace: str = DEFAULT_NAMESPACE
    ) -> list[str]:
        """Imports overlays of the older flat format and returns the ids of the new ones; known ones are left out.

        Imported overlays keep their categories. Sources that the namespace does not have are marked as unverified. One invalid
        overlay prevents the whole import.

        Raises:
            ProvenanceError: one has no sources
            OverlayRefused, InvalidTimestamp, InvalidSignal, EntryRefused: one has a field that is wrong
        """
        async with self._changing:
            subject = await self._known(namespace)
            check_writable(namespace)
            taken: dict[str, dict[str, object]] = {}
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

    def _check_fits(self, fields: Mapping[str, object]) -> None:
        """Raises OverlayRefused for a payload that is too large for the ledger, before anything is written."""
        size, limit = len(canonical_bytes(dict(fields), at="overlay")), self.overlays.config.max_entry_bytes // 2
        if size > limit:  # half, because sealed text is longer
            raise OverlayRefused("content", f"{size} bytes", f"expected at most {limit} bytes, half of max_entry_bytes")

    def _complete(self, overlay: Overlay | Mapping[str, object], namespace: str) -> Overlay:
        """The checked overlay with its derived fields."""
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

    async def _find(self, namespace: str, artifact_id: str) -> tuple[SubjectMemory, Overlay]:
        """The memory of a namespace and one of its artifacts. Overlays of the older format are not found; they only decay."""
        subject = await self._known(namespace)
        found = subject.overlay(artifact_id, self._cut(subject, None, None))
        if found is None or found.artifact_id != artifact_id:
            raise UnknownArtifact(artifact_id, namespace)
        return subject, found

    async def _deactivate(self, subject: SubjectMemory, overlay: Overlay, fields: OverlayDeactivatedPayload) -> None:
        fields["artifact_id"], fields["overlay_id"] = overlay.key, overlay.overlay_id
        fields["v"] = events.VERSIONS[events.HO3_OVERLAY_DEACTIVATED]
        await self._append(subject, events.HO3_OVERLAY_DEACTIVATED, overlay.overlay_id, fields)

    async def _set_weight(self, subject: SubjectMemory, overlay: Overlay, fields: OverlayWeightPayload) -> None:
        fields["artifact_id"], fields["overlay_id"] = overlay.key, overlay.overlay_id
        fields["v"] = events.VERSIONS[events.HO3_OVERLAY_WEIGHT_UPDATED]
        await self._append(subject, events.HO3_OVERLAY_WEIGHT_UPDATED, overlay.overlay_id, fields)

    async def _quarantine(self, subject: SubjectMemory, fields: QuarantinePayload) -> None:
        target = fields["target"]
        stored = self.stored_id(target, namespace=subject.namespace) if _is_signal(target) else target
        await self._append(subject, events.HO3_QUARANTINED, stored, fields)

    async def _append(self, subject: SubjectMemory, entry_type: str, entity_id: str, fields: Mapping[str, object]) -> None:
        payload = self._keyed({**entry_base(subject.namespace), **fields}, subject.namespace)
        subject.pins += 1
        try:
            ref = await self.overlays.write(LedgerEntry(entry_type, entity_id, payload))
            told = events.in_words(payload)
            subject.apply_overlay(self.overlays.position, self.overlays.last_timestamp, entry_type, told, ref)
        finally:
            subject.pins -= 1

    def _keyed(self, payload: dict[str, object], namespace: str) -> dict[str, object]:
        """A payload with stored signal ids, and a `words` field with the words of the keyed ones."""
        sources = payload.get("source_signal_ids")
        named = [payload.get("signal_id"), payload.get("target"), *(sources if isinstance(sources, list) else ())]
        stored = {each: self.stored_id(each, namespace=namespace) for each in named if _is_signal(each)}
        words = {mine: each for each, mine in stored.items() if mine != each}
        if not words:
            return payload
        return {**events.with_signals(payload, stored), "words": words}


def entry_base(namespace: str) -> MemoryPayload:
    """The fields that every payload in the memory's ledgers has."""
    return {"v": events.VERSION, "namespace": namespace, "subject_id": subject_in(namespace)}


def subject_in(namespace: str) -> str:
    """The subject id in a namespace."""
    return split_namespace(namespace)[1]


def _is_signal(target: object) -> TypeGuard[str]:
    return isinstance(target, str) and not target.startswith("EVT-")


def _stored(overlay: Overlay) -> dict[str, object]:
    """An overlay's payload in the ledger; fields that are None are left out."""
    fields = overlay.model_dump(mode="json", exclude_none=True)
    return fields if overlay.artifact_id is None else {"expires_at_event_ts": None, **fields}


def _in_quarantine(overlay: Overlay, subject: SubjectMemory, without: Collection[str]) -> list[str]:
    """The sources of an overlay that are in quarantine."""
    if not without:
        return []
    if overlay.signal_id in without:
        return list(overlay.source_event_ids)
    found = ((each, subject.event(each)) for each in overlay.source_event_ids)
    return [each for each, event in found if each in without or (event is not None and event[0] in without)]


def _rests_on(overlay: Overlay, target: str, subject: SubjectMemory) -> bool:
    """Whether an artifact has this signal or event among its sources."""
    if target in overlay.source_event_ids or target in overlay.source_signal_ids or target == overlay.signal_id:
        return True
    return any((found := subject.event(each)) is not None and found[0] == target for each in overlay.source_event_ids)
