"""What `/memory` shows in a chat: the nearest gates and the heaviest learned lines of who is talking."""

from dataclasses import dataclass
from typing import Final

from kitchener.cli.memory.owners import MemoryPlace
from kitchener.cli.memory.view import gate_text, learned_views, signal_views
from kitchener.cli.options import Places
from kitchener.cli.terminal.output import one_line
from kitchener.config import HO3MemoryConfig
from kitchener.memory import HO3Memory
from kitchener.memory.signals import Cut
from kitchener.memory.subject import SubjectMemory
from kitchener.runtime import Runtime

_SIGNALS: Final = 8
_LINES: Final = 10
_WIDTH: Final = 100


@dataclass(frozen=True, slots=True)
class ChatMemory:
    """The memory beside a chat."""

    place: MemoryPlace
    memory: HO3Memory | None
    """None: it is off."""

    @classmethod
    def of(cls, runtime: Runtime, places: Places, agent_class: str) -> "ChatMemory":
        """The one of an agent class of a runtime."""
        place = MemoryPlace(places, agent_class)
        return cls(place, runtime.memory(agent_class) if place.is_on else None)

    async def text(self, subject_id: str | None) -> str:
        """What is known of a subject, in a few lines; None: nobody yet, for an anonymous session has not begun."""
        if self.memory is None:
            return self.place.how_to_turn_on()
        if subject_id is None:
            return "nothing learned yet"
        subject, cut = await self.memory.snapshot(namespace=self.place.namespace(subject_id))
        return "\n".join(brief(f"{subject_id} ({self.place.agent_class})", subject, cut, self.memory.config))


def brief(who: str, subject: SubjectMemory, cut: Cut, config: HO3MemoryConfig) -> list[str]:
    """The nearest gates and the heaviest learned lines, for a look in between."""
    signals = [each for each in signal_views(subject, cut, config) if each.gate.reason != "excluded"]
    signals.sort(key=lambda each: (each.gate.reason in ("blocked", "quarantined"), -each.gate.progress, each.signal_id))
    learned = [each for each in learned_views(subject, cut, config) if each.state == "speaks"]
    learned.sort(key=lambda each: (-each.weight_now, each.overlay.key))
    if not signals and not learned:
        return [f"nothing learned yet about {who}"]
    width = max((len(each.signal_id) for each in signals[:_SIGNALS]), default=0)
    gates = [f"{each.signal_id:<{width}}  {gate_text(each.gate, config.gate_window_hours)}" for each in signals]
    said = [f"{each.overlay.key}  {one_line(each.overlay.line, _WIDTH)}" for each in learned]
    return [
        *_listed(f"what recurs for {who}:", gates, _SIGNALS),
        *_listed("what was learned:", said or ["nothing yet"], _LINES),
    ]


def _listed(title: str, lines: list[str], limit: int) -> list[str]:
    rest = [f"and {len(lines) - limit} more"] if len(lines) > limit else []
    return [title, *(f"  {line}" for line in (*lines[:limit], *rest))]
