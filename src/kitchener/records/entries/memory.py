"""Payloads of the memory's ledgers, SIGNALS and OVERLAYS."""

from collections.abc import Mapping
from typing import Literal, NotRequired, TypedDict

from kitchener.records.entries.common import CommonPayload, Json, Sealed, SealedText

OverlayScope = Literal["agent", "global"]
"""The turns that a learned line applies to: those with its labels, or all of its subject."""
ArtifactType = Literal["topic_affinity", "interaction_style", "task_pattern", "constraint"]
Words = dict[str, str] | Sealed
"""What the keyed signal ids of an entry stand for."""


class GateSnapshot(TypedDict):
    """What a gate had counted when it opened."""

    count: int
    sessions: int


class MemoryPayload(CommonPayload):
    """What every entry of the memory carries."""

    namespace: NotRequired[str]
    """`agent_class/subject_id`, both percent-encoded."""
    words: NotRequired[Words]


class LoggedSignalPayload(MemoryPayload):
    """`HO3_SIGNAL` of version 1: one event of a signal. `log_signal` writes it for programs that log single events. It stays
    beside version 2, because such programs read it by its field names.
    """

    event_id: str
    signal_id: str
    timestamp: str
    """ISO time at which it was seen."""
    metadata: dict[str, Json] | Sealed
    """What the program says of it; before version 8 of the policy that of a turn has `turn_id`."""


class SignalPayload(MemoryPayload):
    """`HO3_SIGNAL` of version 2: what recurs and was seen in a turn. Version 1 is read as one with a single event."""

    signals: Mapping[str, str]
    """Event ids with the signal of each."""
    timestamp: str
    """ISO time at which they were seen."""
    metadata: NotRequired[dict[str, Json] | Sealed]
    """Absent: a turn wrote the entry."""


class OverlayPayload(MemoryPayload):
    """`HO3_OVERLAY`: every field of `Overlay`. The older format lacks many."""

    overlay_id: str
    artifact_id: NotRequired[str | None]
    signal_id: str
    artifact_type: NotRequired[ArtifactType | None]
    labels: NotRequired[dict[str, list[str]] | Sealed | None]
    weight: NotRequired[float | None]
    scope: NotRequired[OverlayScope | None]
    context_line: NotRequired[SealedText | None]
    enabled: bool
    expires_at_event_ts: NotRequired[str | None]
    source_signal_ids: list[str]
    source_event_ids: list[str]
    gate_snapshot: NotRequired[GateSnapshot | None]
    model: NotRequired[str | None]
    prompt_pack_version: NotRequired[str | None]
    consolidation_event_ts: NotRequired[str | None]
    salience_weight: NotRequired[float | None]
    decay_modifier: NotRequired[float | None]
    content: dict[str, Json] | Sealed
    window_start: NotRequired[str | None]
    window_end: NotRequired[str | None]
    created_at: NotRequired[str | None]
    unverified_event_ids: list[str]


class OverlayDeactivatedPayload(MemoryPayload):
    """`HO3_OVERLAY_DEACTIVATED`: an artifact is no longer used, from a certain time on."""

    artifact_id: NotRequired[str]
    """The artifact's key: its overlay id in the older format."""
    overlay_id: NotRequired[str]
    reason: NotRequired[SealedText]
    event_ts: NotRequired[str]
    """When it takes effect, ISO time; absent: when the entry was written."""
    is_dated: NotRequired[bool]
    """Whether `event_ts` decides when it takes effect; False in an upgraded version 1, absent otherwise."""
    block_signal: NotRequired[bool]
    """Nothing may be learned from its signal again."""
    superseded_by: NotRequired[str]
    target: NotRequired[str]
    """The signal or event in quarantine that it rested on."""
    erased_subject: NotRequired[str]
    """In the place of a reason."""


class OverlayWeightPayload(MemoryPayload):
    """`HO3_OVERLAY_WEIGHT_UPDATED`: an artifact has a new weight, from a certain time on."""

    artifact_id: NotRequired[str]
    overlay_id: NotRequired[str]
    new_weight: float | None
    reason: SealedText
    event_ts: NotRequired[str]
    """When it takes effect, ISO time; absent: when the entry was written."""
    is_dated: NotRequired[bool]
    """Whether `event_ts` decides when it takes effect; False in an upgraded version 1, absent otherwise."""


class QuarantinePayload(MemoryPayload):
    """`HO3_QUARANTINED`: a signal or an event that counts no more."""

    target: str
    reason: NotRequired[SealedText]
    erased_subject: NotRequired[str]
