"""Turns ledger records into overlays, which are learned facts with their sources, and folds later changes of them. Pure.

An overlay is one record in the ledger. An artifact is everything recorded under one artifact id: overlays, deactivations and
weight updates; the latest record decides. The older format without artifact id, labels and scope can still be read. Explained
in `docs/memory.md`.
"""

import hashlib
from bisect import insort_right
from collections.abc import Mapping
from datetime import timedelta
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kitchener.choices import LabelKind
from kitchener.errors import OverlayRefused, ProvenanceError
from kitchener.memory.bias import line_of, weight_of
from kitchener.memory.learned_lines import problem_of
from kitchener.memory.signals import Cut, decay
from kitchener.memory.timestamps import HOUR_US, us_of
from kitchener.records import events
from kitchener.records.entries import ArtifactType, OverlayScope
from kitchener.times import EPOCH

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, strict=True)]
LineText = Annotated[str, Field(max_length=4_000)]
LabelList = tuple[Annotated[str, Field(max_length=128)], ...]
_TIMES: Final = ("expires_at_event_ts", "consolidation_event_ts", "window_start", "window_end", "created_at")
_REQUIRED: Final = (
    "artifact_type",
    "labels",
    "weight",
    "scope",
    "context_line",
    "gate_snapshot",
    "model",
    "prompt_pack_version",
    "consolidation_event_ts",
    "salience_weight",
    "decay_modifier",
    "content",
    "window_start",
    "window_end",
    "created_at",
)


class Overlay(BaseModel):
    """A fact that was learned from a signal. Fields that the older format lacks are None."""

    # A NaN must stay NaN, so that writing refuses it; the default would turn it into null.
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="constants")

    overlay_id: str
    """`OVL-…`, the id of the record."""
    artifact_id: str | None = None
    """`ART-…`, the id of the artifact within the namespace; None: the older format."""
    signal_id: str
    """The signal from which it was learned."""
    artifact_type: ArtifactType | None = None
    """The kind of fact."""
    labels: dict[LabelKind, LabelList] | None = None
    """The labels to which it applies: a turn needs one of them, in either dimension."""
    weight: Share | None = None
    """Weight before decay, 0 to 1, after the latest update."""
    scope: OverlayScope | None = None
    """`global`: it applies to turns with any labels, but only of its own subject."""
    context_line: LineText | None = None
    """The line that the model sees."""
    enabled: bool = True
    """False after a deactivation."""
    expires_at_event_ts: str | None = None
    """ISO time from which it is no longer shown; None: only decay ends it."""
    source_signal_ids: tuple[str, ...] = ()
    """The signals from which it was learned."""
    source_event_ids: tuple[str, ...] = ()
    """The events from which it was learned; never empty."""
    gate_snapshot: dict[str, int] | None = None
    """`count` and `sessions` when its gate opened."""
    model: str | None = None
    """The model that wrote it."""
    prompt_pack_version: str | None = None
    """The prompt pack of the request."""
    consolidation_event_ts: str | None = None
    """ISO time from which its age is counted."""
    salience_weight: Share | None = None
    """The weight that the model gave it."""
    decay_modifier: Share | None = None
    """Factor of its rank, from the model."""
    content: dict[str, object] = Field(default_factory=dict)
    """`bias`: the tendency, as a sentence; `category`: its kind."""
    window_start: str | None = None
    """ISO time of the oldest counted event."""
    window_end: str | None = None
    """ISO time at which its gate opened."""
    created_at: str | None = None
    """ISO time of the record."""
    unverified_event_ids: tuple[str, ...] = ()
    """Sources of an imported overlay that no ledger contains."""

    def as_mapping(self) -> dict[str, Any]:
        """All fields by name, unconverted."""
        return dict(self.__dict__)

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name]

    def get(self, name: str, default: object = None) -> object:
        """A field by name, as of a mapping: `overlay["weight"]` is `overlay.weight`."""
        return self.__dict__.get(name, default)

    @property
    def key(self) -> str:
        """The key of the artifact within its namespace: the artifact id, or the overlay id in the older format."""
        return self.artifact_id or self.overlay_id

    @property
    def line(self) -> str:
        """The line that the model sees, in either format."""
        return line_of(self.__dict__)

    @property
    def is_erased(self) -> bool:
        """Whether the key of its text was destroyed; the current format is never written without a line."""
        return self.artifact_id is not None and self.context_line is None

    def salience(self, as_of_us: int, half_life_hours: float) -> float:
        """The weight after decay, to 12 significant digits."""
        since = self.consolidation_event_ts or self.created_at
        hours = 0.0 if since is None else (as_of_us - us_of(since, "consolidation_event_ts")) / HOUR_US
        return float(f"{weight_of(self.__dict__) * decay(hours, half_life_hours):.12g}")

    def is_expired(self, as_of_us: int) -> bool:
        """Whether it has expired at a moment, given in microseconds since the epoch."""
        expires = self.expires_at_event_ts
        return expires is not None and as_of_us >= us_of(expires, "expires_at_event_ts")


def compute_artifact_id(
    source_signal_ids: tuple[str, ...] | list[str], window_key: str, model: str, prompt_pack_version: str
) -> str:
    """`ART-` and 12 hex digits: the same signals, window, model and pack always give the same artifact.

    Args:
        source_signal_ids: the signals, in any order
        window_key: `gate_window_key` of the window's end
        model: the model that wrote it
        prompt_pack_version: the prompt pack of the request
    """
    text = f"{','.join(sorted(source_signal_ids))}|{window_key}|{model}|{prompt_pack_version}"
    return f"ART-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def gate_window_key(window_end: str, gate_window_hours: int) -> str:
    """ISO time, in whole seconds, of the start of the window that contains a moment; windows start at the Unix epoch.

    Raises:
        InvalidTimestamp: the moment has no zone
    """
    width = gate_window_hours * HOUR_US
    return (EPOCH + timedelta(microseconds=us_of(window_end, "window_end") // width * width)).isoformat()


def overlay_id(namespace: str, key: str) -> str:
    """`OVL-` and 16 hex digits, derived from namespace and key, so that a replay gives the same id."""
    return f"OVL-{hashlib.sha256(f'{namespace}|{key}'.encode()).hexdigest()[:16]}"


def parse_overlay(fields: Mapping[str, object]) -> Overlay:
    """Reads an overlay of either format.

    Raises:
        OverlayRefused: a field is missing or wrong
        InvalidTimestamp: a moment has no zone
    """
    if not isinstance(fields, Mapping):
        raise OverlayRefused("record", fields, "expected an object with the overlay's fields")
    try:
        overlay = Overlay.model_validate(dict(fields))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        at = ".".join(str(part) for part in first["loc"])
        if at == "artifact_type":
            raise OverlayRefused(
                at, first["input"], "expected topic_affinity, interaction_style, task_pattern or constraint"
            ) from None
        raise OverlayRefused(at, None if first["type"] == "missing" else first["input"], first["msg"]) from None
    for name in _TIMES:
        value = getattr(overlay, name)
        if value is not None:
            us_of(value, f"overlay {name}")
    return overlay


def parse_older(fields: Mapping[str, object], max_line_chars: int) -> Overlay:
    """Reads an overlay of the older flat format for an import.

    Raises:
        OverlayRefused: a field is missing or wrong, exists only in the current format, or its text is not a learned line
        ProvenanceError: it names no sources
        InvalidTimestamp: a moment has no zone
    """
    overlay = parse_overlay(fields)
    for name in ("artifact_id", "labels", "scope", "context_line"):
        if getattr(overlay, name) is not None:  # an import does not check these against the sources
            raise OverlayRefused(name, getattr(overlay, name), "expected the older shape, which does not have it")
    if not overlay.overlay_id:
        raise OverlayRefused("overlay_id", "", "is required")
    if not overlay.source_event_ids:
        raise ProvenanceError("source_event_ids", [], f"expected the events that {overlay.overlay_id!r} was learned from")
    if "bias" in overlay.content:
        check_line("content.bias", overlay.content["bias"], max_line_chars)
    return overlay


def check_line(name: str, text: object, max_line_chars: int) -> None:
    """Raises OverlayRefused if a text cannot be a learned line."""
    problem = problem_of(text, max_line_chars) if isinstance(text, str) else "expected text"
    if problem is not None:
        raise OverlayRefused(name, text, problem)


def check_complete(overlay: Overlay, max_line_chars: int) -> None:
    """Checks an overlay of the current format before it is written.

    Raises:
        ProvenanceError: it names no sources
        OverlayRefused: a field is missing, or its text is not a learned line
    """
    if not overlay.source_event_ids:
        raise ProvenanceError("source_event_ids", [], "expected the events that it was learned from")
    if not overlay.source_signal_ids:
        raise ProvenanceError("source_signal_ids", [], "expected the signals that it was learned from")
    for name in _REQUIRED:
        value = getattr(overlay, name)
        if value is None or value == "":
            raise OverlayRefused(name, value, "is required")
    check_line("context_line", overlay.context_line, max_line_chars)
    check_line("content.bias", overlay.content.get("bias"), max_line_chars)


class OverlayRecord(NamedTuple):
    """One record about an artifact."""

    seq: int
    """Number of the entry in the overlays ledger."""
    effective_us: int
    """When it took effect, microseconds since the epoch: its `event_ts`, but not before the overlay that it changes; without an
    `event_ts`, the time of its entry."""
    entry_type: str
    """`HO3_OVERLAY`, or the type of a later change."""
    overlay: Overlay | None
    """The overlay; None: the record is a later change."""
    weight: float | None
    """The new weight; None: the record is not a weight update."""
    blocks: bool
    """Whether consolidation must not learn from the signal again."""
    reason: str
    """The given reason; "": there is none."""
    cancels: bool = False
    """Whether it cancels changes that were written before it and would take effect after it, because it must last: a
    quarantine, or an erasure."""


_effective = attrgetter("effective_us")


class OverlayHistory:
    """The records of one artifact, in the order in which they took effect; at the same moment, in the ledger's order."""

    __slots__ = ("_begun_us", "records")

    def __init__(self) -> None:
        self.records: list[OverlayRecord] = []
        self._begun_us = 0

    def add(self, record: OverlayRecord) -> None:
        """Adds the record that comes next in the ledger.

        A change that was dated before its overlay takes effect with the overlay; otherwise the overlay would undo it.
        """
        if record.overlay is not None:
            self._begun_us = record.effective_us
        elif record.effective_us < self._begun_us:
            record = record._replace(effective_us=self._begun_us)
        insort_right(self.records, record, key=_effective)

    def at(self, cut: Cut) -> Overlay | None:
        """The artifact as of a cut: the latest overlay with the latest weight; None: it does not exist yet.

        It is enabled unless its latest record deactivated it, or its text was erased.
        """
        found: Overlay | None = None
        weight: float | None = None
        enabled = True
        for record in self.visible(cut):
            if record.overlay is not None:
                found, weight, enabled = record.overlay, None, record.overlay.enabled
            elif record.entry_type == events.HO3_OVERLAY_WEIGHT_UPDATED:
                weight, enabled = record.weight, found is None or not found.is_erased
            else:
                enabled = False
        if found is None or (weight is None and enabled == found.enabled):
            return found
        return found.model_copy(update={"enabled": enabled} if weight is None else {"enabled": enabled, "weight": weight})

    def is_blocked(self, cut: Cut) -> bool:
        """Whether the latest record as of a cut blocks the signal."""
        blocks = False
        for record in self.visible(cut):
            blocks = record.blocks
        return blocks

    def visible(self, cut: Cut) -> list[OverlayRecord]:
        """The records within a cut."""
        found = [each for each in self.records if each.seq <= cut.overlays_seq and each.effective_us <= cut.as_of_us]
        for last in [each for each in found if each.cancels]:
            found = [each for each in found if each.seq >= last.seq or each.effective_us <= last.effective_us]
        return found
