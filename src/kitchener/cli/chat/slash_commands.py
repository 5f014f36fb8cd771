"""Answers the questions that a person asks in a chat: `/why`, `/prompt` and `/intents` about its context, and `/memory`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kitchener.actors.authority.agent_ruleset import ruleset_of
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.cli.context.shown_requests import prompt_lines
from kitchener.cli.context.text import how_to_turn_on, intent_words, shown_lines, thread_lines
from kitchener.cli.context.why import head_lines, nothing_lines
from kitchener.cli.memory.agent_memory import AgentMemory
from kitchener.config import HO3MemoryConfig
from kitchener.context import ContextState, Resolution, resolve_active
from kitchener.context.fold.items import count_turns
from kitchener.context.projection.explanation import closer_words
from kitchener.errors import NotOnRecord
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.memory_views import gate_text, learned_views, signal_views
from kitchener.inspection.shown_text import one_line
from kitchener.inspection.turn_views.recorded_session import fold_entries, read_past
from kitchener.inspection.turn_views.recorded_turn import TurnView, read_turn
from kitchener.memory import HO3Memory
from kitchener.memory.signals import Cut
from kitchener.memory.subject_memory import SubjectMemory
from kitchener.plain_names import counted
from kitchener.records import events
from kitchener.replaying import read_prompts
from kitchener.runtime import Runtime

_WIDTH: Final = 100
_SIGNALS: Final = 8
_LINES: Final = 10


def is_about_context(word: str) -> bool:
    """Whether a typed line asks about the context."""
    return word.split()[:1] in (["/why"], ["/prompt"], ["/intents"])


@dataclass(frozen=True, slots=True)
class ChatContext:
    """Answers questions in one chat. Reads the ledgers, which have each reply before it is shown."""

    paths: LedgerPaths
    supervisor: HO2Supervisor

    async def text(self, word: str, session_id: str | None) -> str:
        """The answer to a typed line.

        Raises:
            InvalidLifecycle: the conflict was resolved in the meantime
            LedgerError: the ledgers cannot be read
        """
        words = word.split()
        if session_id is None:
            return "no session yet; it starts with your first message"
        if words[0] == "/why":
            return await self._why(session_id)
        if words[0] == "/prompt":
            return await self._prompt(session_id, words[1:])
        if len(words) == 1:
            return await self._intents(session_id)
        if len(words) == 3 and words[1] == "keep":
            return await self._keep(session_id, words[2])
        return "/intents lists the threads of this session; /intents keep N continues the N-th competing one"

    async def _why(self, session_id: str) -> str:
        turn_id = await self._last_turn(session_id, events.TURN_COMPLETED, events.TURN_ABORTED)
        if turn_id is None:
            return "no reply yet that could be explained"
        return "\n".join(_why_lines(await read_turn(self.paths, self.supervisor.agent_class, turn_id)))

    async def _prompt(self, session_id: str, given: list[str]) -> str:
        if len(given) > 1 or not all(each.isascii() and each.isdigit() for each in given):
            return "/prompt shows what the models were asked for the last reply; /prompt N only the N-th request"
        turn_id = await self._last_turn(session_id, events.TURN_COMPLETED)
        if turn_id is None:
            return "no reply yet for which a model was asked"
        number = int(given[0]) if given else None
        found = await read_prompts(turn_id, config=self.paths.config, agent_class=self.supervisor.agent_class)
        try:
            return "\n".join(prompt_lines(found, number))
        except NotOnRecord as error:
            return str(error)

    async def _last_turn(self, session_id: str, *ends: str) -> str | None:
        """The session's last turn that ended with one of these entries; None: there is none."""
        past = await read_past(self.paths, session_id, self.supervisor.agent_class)
        turns = [entry.entity_id for entry in past.entries if entry.entry_type in ends]
        return turns[-1] if turns else None

    async def count_turns(self, session_id: str) -> int:
        """The number of turns that the session has begun, in this chat and before it."""
        past = await read_past(self.paths, session_id, self.supervisor.agent_class)
        return sum(entry.entry_type == events.TURN_STARTED for entry in past.entries)

    async def _intents(self, session_id: str) -> str:
        state, resolution = await self._resolved(session_id)
        if not state.intents:
            return f"this session has no intents{self._hint()}"
        return "\n".join(_thread_lines(state, resolution))

    async def _keep(self, session_id: str, number: str) -> str:
        state, resolution = await self._resolved(session_id)
        competing = resolution.competing
        if not competing:
            return f"no intents compete{self._hint()}"
        if not (number.isascii() and number.isdigit() and 1 <= int(number) <= len(competing)):
            return f"/intents keep {number}: expected a number from 1 to {len(competing)}; /intents lists them"
        chosen = competing[int(number) - 1]
        await self.supervisor.resolve_conflict(session_id, keep=chosen)
        return f"continuing with {intent_words(state, chosen)}"

    async def _resolved(self, session_id: str) -> tuple[ContextState, Resolution]:
        past = await read_past(self.paths, session_id, self.supervisor.agent_class)
        state = fold_entries(past.entries, past.config, session_id)
        return state, resolve_active(state, ruleset_of(past.config))

    def _hint(self) -> str:
        """How to turn on the Context Authority, if it is off for the class; otherwise empty."""
        config = self.supervisor.config
        return "" if config.context_mode == "enforce" else f"; {how_to_turn_on(self.supervisor.agent_class)}"


def _why_lines(view: TurnView) -> Iterator[str]:
    yield from head_lines(view)
    if view.projection is None:
        yield from nothing_lines(view)
        return
    yield from shown_lines(view.projection)
    learned = [each.item for each in view.projection.visible if each.item.kind == "bias"]
    for item in learned:
        yield f"learned line shown: {item.entity_id}  {one_line(item.text, _WIDTH)}"
    for flag in view.flags:
        yield f"flag {flag.get('kind')}: {flag.get('detail')!s}"
    yield f"= more: kitchener context explain {view.turn_id}"


def _thread_lines(state: ContextState, resolution: Resolution) -> Iterator[str]:
    if resolution.competing:
        yield f"{len(resolution.competing)} threads compete; /intents keep N continues one of them:"
        yield from thread_lines([state.intents[each] for each in resolution.competing], state)
    elif resolution.active is not None:
        turns = count_turns(state.attached(resolution.active).turns)
        yield f"active: {intent_words(state, resolution.active)}  {counted(turns, 'turn')}"
    else:
        yield "no thread is active; the next message begins one"
    for record in state.intents.values():
        if record.intent_id != resolution.active and record.intent_id not in resolution.competing:
            by = f", by {closer_words(record.closed_by)}" if record.status == "closed" else ""
            yield f"  {record.status:<10}  {intent_words(state, record.intent_id)}{by}"


@dataclass(frozen=True, slots=True)
class ChatMemory:
    """The memory beside a chat."""

    place: AgentMemory
    memory: HO3Memory | None
    """The memory of the agent class; None: it is off."""

    @classmethod
    def of(cls, runtime: Runtime, paths: LedgerPaths, agent_class: str) -> "ChatMemory":
        """The memory of one of a runtime's agent classes."""
        place = AgentMemory(paths, agent_class)
        return cls(place, runtime.memory(agent_class) if place.is_on else None)

    async def text(self, subject_id: str | None) -> str:
        """A subject's memory in a few lines. With None there is no subject yet, because an anonymous session has not begun."""
        if self.memory is None:
            return self.place.how_to_turn_on()
        if subject_id is None:
            return "nothing learned yet"
        subject, cut = await self.memory.snapshot(namespace=self.place.namespace(subject_id))
        return "\n".join(brief(f"{subject_id} ({self.place.agent_class})", subject, cut, self.memory.config))


def brief(who: str, subject: SubjectMemory, cut: Cut, config: HO3MemoryConfig) -> list[str]:
    """The gates that are nearest to opening and the learned lines of highest weight, as a short summary."""
    signals = [each for each in signal_views(subject, cut, config) if each.gate.reason != "excluded"]
    signals.sort(key=lambda each: (each.gate.is_barred, -each.gate.progress, each.signal_id))
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
