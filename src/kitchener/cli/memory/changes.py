"""Changes a subject's memory for a person: deactivates an artifact, or puts a signal or an event in quarantine."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from kitchener.cli.memory.agent_memory import AgentMemory, signal_kinds
from kitchener.cli.memory.explain import TurnText, read_turn_text, turns_shown
from kitchener.errors import ConfigError
from kitchener.inspection.shown_text import one_line, short_time
from kitchener.memory import Overlay
from kitchener.memory.signals import normalise
from kitchener.plain_names import counted
from kitchener.runtime.admin.operations import DeactivateArtifact, QuarantineTarget
from kitchener.runtime.administration import administer

_AT_MOST: Final = 20
_WIDTH: Final = 100


@dataclass(frozen=True, slots=True)
class WithdrawnLine:
    """An artifact that is no longer used, and the turns that were shown its line."""

    overlay: Overlay
    shown_in: list[TurnText]

    def as_json(self) -> dict[str, object]:
        return {
            "artifact_id": self.overlay.artifact_id,
            "overlay_id": self.overlay.overlay_id,
            "signal_id": self.overlay.signal_id,
            "line": self.overlay.line,
            "shown_in": [each.as_json() for each in self.shown_in],
        }

    def lines(self) -> Iterator[str]:
        turns = len(self.shown_in)
        yield f"  {self.overlay.key}: {one_line(self.overlay.line, _WIDTH)}"
        yield f"  it had been shown in {counted(turns, 'turn')}{':' if turns else ''}"
        for turn in self.shown_in[-_AT_MOST:]:
            yield f"    {turn.turn_id}  {short_time(turn.started_at or '?')}  {turn.said()[0]}"
        if turns > _AT_MOST:
            yield f"    and {turns - _AT_MOST} earlier ones (--json has them all)"


@dataclass(frozen=True, slots=True)
class OperatorDecision:
    """The effect of a decision."""

    agent_class: str
    subject_id: str
    target: str
    is_written: bool
    """Whether something was written; False: the decision was already on record."""
    note: str
    """The effect, or the reason why there is none, as text."""
    withdrawn: list[WithdrawnLine] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        return {
            "agent_class": self.agent_class,
            "subject_id": self.subject_id,
            "target": self.target,
            "written": self.is_written,
            "deactivated": [each.as_json() for each in self.withdrawn],
        }

    def lines(self) -> Iterator[str]:
        yield self.note
        for each in self.withdrawn:
            yield from each.lines()


async def deactivated(
    place: AgentMemory, artifact_id: str, subject_id: str | None, *, reason: str, block: bool
) -> OperatorDecision:
    """Deactivates an artifact.

    Args:
        place: whose memory
        artifact_id: `ART-…`
        subject_id: the subject; None: the only subject that has the artifact
        reason: the reason
        block: whether nothing may be learned from its signal again

    Raises:
        UnknownArtifact: there is no such artifact
        CallerError: several subjects have it
        LedgerLocked, AdminUnavailable: another process holds the memory, and does not accept the request
    """
    _check_reason(reason)
    async with place.reader() as reader:
        subject_id = await place.owner_of(reader, artifact_id, subject_id)
    operation = DeactivateArtifact(
        agent_class=place.agent_class, subject_id=subject_id, artifact_id=artifact_id, reason=reason, block=block
    )
    change = await administer(place.paths.config, operation)
    if not change.is_written:
        note = f"{artifact_id} of {subject_id} is deactivated already; nothing was written"
        return OperatorDecision(place.agent_class, subject_id, artifact_id, False, note)
    (overlay,) = change.withdrawn
    again = "is not learned from again" if block else "may be learned from again later, --block prevents that"
    note = f"deactivated {artifact_id} of {subject_id}; its signal {overlay.signal_id} {again}"
    return OperatorDecision(
        place.agent_class, subject_id, artifact_id, True, note, await _withdrawn(place, subject_id, [overlay])
    )


async def quarantined(place: AgentMemory, target: str, subject_id: str | None, *, reason: str) -> OperatorDecision:
    """Stops a signal or an event from counting, and deactivates the learned lines that lose their support.

    Args:
        place: whose memory
        target: a signal id or `EVT-…`
        subject_id: the subject; None: the only subject that gave it
        reason: the reason

    Raises:
        CallerError: no subject gave it, or several did
        LedgerLocked, AdminUnavailable: another process holds the memory, and does not accept the request
    """
    _check_reason(reason)
    async with place.reader() as reader:
        subject_id = await place.holder_of(reader, target, subject_id)
    if not target.startswith("EVT-"):
        target = normalise(target, signal_kinds(place.config))
    operation = QuarantineTarget(agent_class=place.agent_class, subject_id=subject_id, target=target, reason=reason)
    change = await administer(place.paths.config, operation)
    target, lost = change.target, list(change.withdrawn)
    if not change.is_written:
        note = f"{target} of {subject_id} is in quarantine already; nothing was written"
        return OperatorDecision(place.agent_class, subject_id, target, False, note)
    note = f"{target} of {subject_id} is in quarantine and counts no more; "
    note += "without it these are deactivated:" if lost else "nothing learned lost its support"
    return OperatorDecision(place.agent_class, subject_id, target, True, note, await _withdrawn(place, subject_id, lost))


async def _withdrawn(place: AgentMemory, subject_id: str, overlays: list[Overlay]) -> list[WithdrawnLine]:
    found = []
    async with place.paths.reader(place.agent_class) as ho2m:
        for overlay in overlays:
            turns = await turns_shown(ho2m, subject_id, overlay.key)
            found.append(WithdrawnLine(overlay, [await read_turn_text(ho2m, each) for each in turns]))
    return found


def _check_reason(reason: str) -> None:
    if not reason.strip():
        raise ConfigError("--reason", "", repr(reason), "expected a reason, in a few words")
