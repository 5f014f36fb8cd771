"""What a model would have been shown under another policy: recorded turns run again under it, with no model call.

Each turn gets the recorded past, message, classification and reply, and the policy's own view of them. Where the recorded
session has no intents, those that the policy would have made accumulate from turn to turn. Explained in `docs/replay.md`.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from kitchener.actors.budget import estimate_tokens
from kitchener.actors.execution import WorkOrderFailed
from kitchener.canonical import canonical_bytes, digest
from kitchener.config import RuntimeConfig
from kitchener.ledger import LedgerEntry, StoredEntry
from kitchener.memory.signals import normalise
from kitchener.records import events
from kitchener.records.prompt import OnAttempt, PromptRequest, PromptResponse, StreamItem
from kitchener.records.ref import Ref
from kitchener.replaying.doubles import RecordedClock, RecordedMemory
from kitchener.replaying.session import Replays, open_replays
from kitchener.replaying.tape import Tape, TurnTape
from kitchener.runtime.places import agent_of

_LONG: Final = 86_400.0
_PLACES: Final = ("ho2m_path", "ho1m_path", "ho3_memory_dir")
"""Settings that say where a session was recorded: another policy reads it from there too."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a model is shown in one turn."""

    items: tuple[str, ...] = ()
    """Ids of turns, rules, intents and learned lines, in order."""
    suppressed: tuple[str, ...] = ()
    """Ids of what is eligible and not shown in full, each with its reason."""
    text: str = ""
    """The context, as it stands in the prompt."""
    tokens: int = 0
    """Of the context, estimated."""
    prefix_tokens: int = 0
    """Of its beginning that is the same as in the turn before: what a provider's cache can keep."""


@dataclass(frozen=True, slots=True)
class TurnDiff:
    """One turn under both policies."""

    turn_id: str
    recorded: Shown
    other: Shown

    @property
    def came_in(self) -> tuple[str, ...]:
        """Shown under the other policy only."""
        return tuple(each for each in self.other.items if each not in self.recorded.items)

    @property
    def went_out(self) -> tuple[str, ...]:
        """Shown as recorded only."""
        return tuple(each for each in self.recorded.items if each not in self.other.items)

    @property
    def is_same(self) -> bool:
        """Whether the model would have been shown the same."""
        return self.recorded.items == self.other.items and self.recorded.text == self.other.text

    def as_json(self) -> dict[str, Any]:
        """Everything but the texts, as JSON types."""
        return {
            "turn_id": self.turn_id,
            "same": self.is_same,
            "came_in": list(self.came_in),
            "went_out": list(self.went_out),
            **{name: _as_json(shown) for name, shown in (("recorded", self.recorded), ("other", self.other))},
        }

    def text(self) -> str:
        """For a reader, a line and one for each item that differs."""
        before, after = self.recorded, self.other
        line = (
            f"  {self.turn_id}  {len(before.items)} → {len(after.items)} items, {before.tokens} → {after.tokens} tokens,"
            f" prefix {before.prefix_tokens} → {after.prefix_tokens}"
        )
        return "\n".join([line, *(f"    - {each}" for each in self.went_out), *(f"    + {each}" for each in self.came_in)])


@dataclass(frozen=True, slots=True)
class WhatIfReport:
    """A session under another policy."""

    session_id: str
    agent_class: str
    turns: tuple[TurnDiff, ...] = field(default_factory=tuple)

    @property
    def changed(self) -> tuple[TurnDiff, ...]:
        """The turns in which something else would have been shown."""
        return tuple(each for each in self.turns if not each.is_same)

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON types."""
        return {
            "session_id": self.session_id,
            "agent_class": self.agent_class,
            "turns": [each.as_json() for each in self.turns],
            "summary": summary_of([self]),
        }

    def text(self) -> str:
        """For a reader: the turns that differ."""
        head = f"{self.session_id}  {len(self.changed)} of {len(self.turns)} turns would have been shown something else"
        return "\n".join([head, *(each.text() for each in self.changed)])


def summary_of(reports: Sequence[WhatIfReport]) -> dict[str, Any]:
    """What another policy comes to over sessions: turns that change, and tokens and kept prefixes summed up."""
    turns = [each for report in reports for each in report.turns]
    return {
        "sessions": len(reports),
        "turns": len(turns),
        "changed": sum(not each.is_same for each in turns),
        "came_in": sum(len(each.came_in) for each in turns),
        "went_out": sum(len(each.went_out) for each in turns),
        **{
            name: {
                "tokens": sum(shown.tokens for shown in views),
                "prefix_tokens": sum(shown.prefix_tokens for shown in views),
            }
            for name, views in (("recorded", [each.recorded for each in turns]), ("other", [each.other for each in turns]))
        },
    }


def summary_text(reports: Sequence[WhatIfReport]) -> str:
    """The same for a reader."""
    found = summary_of(reports)
    before, after = found["recorded"], found["other"]
    return (
        f"{found['sessions']:,} sessions, {found['changed']:,} of {found['turns']:,} turns differ:"
        f" {found['came_in']:,} items more, {found['went_out']:,} fewer;"
        f" context {before['tokens']:,} → {after['tokens']:,} tokens,"
        f" of which the turn before had begun alike {before['prefix_tokens']:,} → {after['prefix_tokens']:,}"
    )


class WhatIf:
    """Compares policies over recorded sessions; made by `open_what_if`."""

    def __init__(self, recorded: Replays, other: Replays) -> None:
        self._recorded, self._other = recorded, other

    async def sessions(self) -> list[str]:
        """The sessions on record, oldest first."""
        return await self._recorded.sessions()

    async def compare(self, session_id: str) -> WhatIfReport:
        """One session under both policies.

        Raises:
            UnknownSession: it is not on record
        """
        before, after = await _Run(self._recorded).views(session_id), await _Run(self._other).views(session_id)
        turns = tuple(TurnDiff(turn_id, before[turn_id], after[turn_id]) for turn_id in before)
        return WhatIfReport(session_id, self._recorded.agent_class, turns)


@asynccontextmanager
async def open_what_if(
    settings: RuntimeConfig, other: RuntimeConfig, agent_class: str, *, tools: Sequence[Callable[..., Any]] = ()
) -> AsyncIterator[WhatIf]:
    """What compares the policy of `settings`, under which sessions were recorded, with another one.

    Args:
        settings: the one at hand; it says where the sessions are
        other: the other one
        agent_class: whose sessions
        tools: what was given to `open_runtime`

    Raises:
        LedgerDamaged: a ledger is not what was written
        ConfigError, PromptError, ToolError: the agent class cannot be put together
    """
    mine, theirs = agent_of(settings, agent_class), agent_of(other, agent_class)
    agent = theirs.model_copy(update={place: getattr(mine, place) for place in _PLACES})
    memory = other.memory.model_copy(update={"memory_dir": settings.memory.memory_dir})
    moved = {"plane_root": settings.plane_root, "ledger": settings.ledger, "memory": memory}
    other = other.model_copy(update={**moved, "agents": {**other.agents, agent_class: agent}})
    async with (
        open_replays(settings, agent_class, tools=tools) as recorded,
        open_replays(other, agent_class, tools=tools, verify=False) as replays,
    ):
        yield WhatIf(recorded, replays)


class _OpenTape(Tape):
    """A tape that takes whatever is written, and keeps the projection."""

    def __init__(self, tape: Tape) -> None:
        super().__init__(tape.session_id, tape.entries, ho2m=tape.ho2m, names=tape.names)
        self.known = self.recordings()
        self.projection: Mapping[str, Any] | None = None
        """The one that the turn's context is made of."""
        self._written: dict[tuple[str, str], str] = {}
        self._intents: list[tuple[str, str]] = []

    def begin(self, turn: TurnTape | None) -> None:
        """Puts the tape to a turn."""
        super().begin(turn)
        self.projection, self._intents = None, []

    def is_on_record(self, turn: TurnTape) -> bool:
        """Whether the session's past is the recorded one: the turn before this made the intents that it made then."""
        if self.turn is None or self.before(turn) != self.turn.entries[self.ho2m][-1].seq:
            return False
        then = [(each.entry_type, each.entity_id) for each in self.turn.entries[self.ho2m]]
        return self._intents == [each for each in then if each[0].startswith("INTENT_")]

    def next_of(self, ledger_id: str) -> StoredEntry | None:
        """Nothing is expected."""
        return None

    def take(self, ledger_id: str, entry: LedgerEntry) -> StoredEntry:
        """The entry as if it were stored."""
        moment = self.turn.started.payload["turn_ts"] if self.turn is not None else "1970-01-01T00:00:00.000000+00:00"
        number = len(self._written) + 1
        body = canonical_bytes({**entry._asdict(), "timestamp": moment})
        stored = StoredEntry(
            ledger_id,
            number,
            f"E-WHAT-IF-{number:012d}",
            digest(body),
            entry.entry_type,
            entry.entity_id,
            moment,
            body,
            self.session_id,
            (),
            None,
        )
        self._written[ledger_id, stored.entry_id] = entry.entity_id
        if entry.entry_type == events.TURN_STARTED and self.turn is not None and self.turn.end is not None:
            self.positions = self.turn.end.payload.get("read_positions", self.positions)
        if ledger_id == self.ho2m and entry.entry_type.startswith("INTENT_"):
            self._intents.append((entry.entry_type, entry.entity_id))
        if entry.entry_type == events.PROJECTION_COMPUTED:
            self.projection = stored.payload if stored.payload["mode"] == "enforce" else None
            if self.projection is not None:
                self._keep_lists(stored)
        return stored

    def name_of(self, ref: Ref) -> str:
        """The entity that a reference stands for."""
        return self._written.get((ref.ledger_id, ref.entry_id)) or super().name_of(ref)

    def _keep_lists(self, stored: StoredEntry) -> None:
        self._lists[stored.entry_id] = self.lists_of(stored.payload)


class _OpenGateway:
    """Gives each step of a turn what the same step was answered then, whatever it is asked now."""

    def __init__(self, tape: _OpenTape) -> None:
        self._tape = tape
        self.context: Mapping[str, Any] | None = None
        """The context of the turn's first reply."""
        self._asked: dict[str, list[str]] = {}

    def begin(self) -> None:
        """A turn begins."""
        self.context, self._asked = None, {}

    async def complete(self, request: PromptRequest, *, on_attempt: OnAttempt) -> PromptResponse:
        """The recorded answer.

        Raises:
            WorkOrderFailed: there is none; nothing that is shown depends on it
        """
        if request.wo_type == "synthesize" and self.context is None:
            self.context = request.variables["assembled_context"]
        same_type = self._asked.setdefault(request.wo_type, [])
        if request.wo_id not in same_type:
            same_type.append(request.wo_id)
        place = same_type.index(request.wo_id)
        turn = self._tape.turn
        planned = turn.of_type(events.WO_PLANNED) if turn is not None else []
        then = [entry.entity_id for entry in planned if entry.payload.get("wo_type") == request.wo_type]
        recording = self._tape.known.get((then[place], request.call)) if place < len(then) else None
        if recording is None:
            raise WorkOrderFailed("PROVIDER", "this call was not recorded", "not_recorded")
        return recording.response

    async def stream(self, request: PromptRequest, *, on_attempt: OnAttempt) -> AsyncIterator[StreamItem]:
        """The same; nobody watches."""
        yield await self.complete(request, on_attempt=on_attempt)


class _OpenMemory(RecordedMemory):
    """The recorded memory, which takes whatever is logged and keeps none of it."""

    async def log_signal(
        self,
        signal_id: str,
        session_id: str,
        event_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        namespace: str,
    ) -> str:
        """Takes note of nothing."""
        normalise(signal_id, self.kinds)
        turn = self._tape.turn
        self.last_logged_ts = turn.started.payload["turn_ts"] if turn is not None else ""
        return str(event_id)


class _Run:
    """A session under one policy."""

    def __init__(self, replays: Replays) -> None:
        self._replays = replays

    async def views(self, session_id: str) -> dict[str, Shown]:
        """What would be shown in each completed turn."""
        tape = _OpenTape(await self._replays.tape_of(session_id))
        has_intents = any(each.entry_type == events.INTENT_DECLARED for each in tape.entries[tape.ho2m])
        clock, gateway = RecordedClock(), _OpenGateway(tape)
        ledgers = self._replays.ledgers_for(tape)
        memory = self._replays.memory_for(tape, clock, _OpenMemory)
        estimator, supervisor, before = self._replays.recorded.agent.token_estimator, None, ""
        found: dict[str, Shown] = {}
        for turn in tape.turns:
            if not turn.is_replayable:
                continue
            is_on_record = tape.is_on_record(turn)
            tape.begin(turn)
            gateway.begin()
            clock.put_to(turn.started.payload["turn_ts"])
            if supervisor is None or (has_intents and not is_on_record):
                supervisor = self._replays.supervisor_for(tape, ledgers, clock, memory, gateway)
            session = await supervisor.session(session_id)
            session.state.turn_count = int(turn.turn_id.rpartition("-")[2]) - 1  # turns that were skipped had numbers too
            message, uses_memory = turn.started.payload["user_message"], turn.started.payload.get("memory", True)
            await supervisor.handle_turn(message, session_id=session_id, memory=uses_memory, deadline=_LONG)
            found[turn.turn_id] = shown = _shown(tape, gateway.context or {}, before, estimator)
            before = shown.text
        return found


def _shown(tape: _OpenTape, context: Mapping[str, Any], before: str, estimator: str) -> Shown:
    text = "\n\n".join([*context.get("ho3_biases", ()), str(context.get("context_text", ""))])
    items: dict[str, None] = {}
    suppressed: tuple[str, ...] = ()
    if tape.projection is not None:
        lists = tape.lists_of(tape.projection)
        items |= dict.fromkeys(tape.name_of(ref) for ref in lists.visible)
        suppressed = tuple(f"{tape.name_of(ref)} {reason}" for ref, reason in lists.suppressed)
    items |= dict.fromkeys(str(each["source_id"]) for each in context.get("fragments", ()))
    same = text[: _common(before, text)]
    return Shown(tuple(items), suppressed, text, estimate_tokens(text, estimator), estimate_tokens(same, estimator))


def _common(one: str, other: str) -> int:
    """Characters with which both begin."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _as_json(shown: Shown) -> dict[str, Any]:
    return {
        "items": list(shown.items),
        "suppressed": list(shown.suppressed),
        "tokens": shown.tokens,
        "prefix_tokens": shown.prefix_tokens,
    }
