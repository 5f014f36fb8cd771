"""Finds the consolidations that failed, from the supervisor's ledger: why nothing was learned although a gate is open."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from kitchener.cli.memory.agent_memory import AgentMemory
from kitchener.inspection.shown_text import UNREADABLE, one_line, short_time
from kitchener.memory.signals import Cut
from kitchener.memory.subject_memory import SubjectMemory
from kitchener.memory.timestamps import us_of
from kitchener.plain_names import counted
from kitchener.records import events
from kitchener.records.entries import WorkOrderFailedPayload, WorkOrderPlannedPayload, payload_as
from kitchener.records.index_keys import CONSOLIDATIONS_KEY

_WIDTH = 240


@dataclass(frozen=True, slots=True)
class FailedLearning:
    """The failed attempts to learn from one signal."""

    attempts: int
    last_at: str
    """ISO time of the newest attempt's end."""
    wo_id: str
    """The newest attempt's work order."""
    reason: str
    detail: str
    """What went wrong in the newest attempt, in words."""

    def as_json(self) -> dict[str, object]:
        return asdict(self)

    def line(self, signal_id: str) -> str:
        failed = f"{counted(self.attempts, 'attempt')} to learn from {signal_id} failed"
        return one_line(f"{failed}, at {short_time(self.last_at)} ({self.wo_id}) because {self.detail}", _WIDTH)


async def failed_learning(place: AgentMemory, subject: SubjectMemory, cut: Cut) -> Mapping[str, FailedLearning]:
    """The failed attempts to learn from each signal of a subject as of a cut, by signal in words."""
    found: dict[str, FailedLearning] = {}
    async with place.paths.reader(place.agent_class) as ho2m:
        if ho2m is None:
            return found
        async for planned in ho2m.read(key=CONSOLIDATIONS_KEY, entry_type=events.WO_PLANNED):
            about = payload_as(WorkOrderPlannedPayload, planned.payload).get("consolidates")
            if about is None or about["namespace"] != subject.namespace:
                continue
            signal_id = subject.in_words(about["signal_id"])
            ends = ho2m.read(session_id=planned.session_id, entity_id=planned.entity_id, entry_type=events.WO_FAILED)
            async for end in ends:
                if us_of(end.timestamp, "timestamp") <= cut.as_of_us:
                    failed = payload_as(WorkOrderFailedPayload, end.payload)
                    before = found[signal_id].attempts if signal_id in found else 0
                    wo_id, reason = end.entity_id, failed["reason"]
                    found[signal_id] = FailedLearning(before + 1, end.timestamp, wo_id, reason, _detail(failed))
    return found


def _detail(failed: WorkOrderFailedPayload) -> str:
    detail = {**failed["error"]}.get("detail") if failed["error"] is not None else None
    return detail if isinstance(detail, str) else UNREADABLE
