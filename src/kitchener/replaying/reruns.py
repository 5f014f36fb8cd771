"""Runs recorded turns again without a model call, and returns what the model would be shown.

Each turn gets the recorded past, message, classification and reply. Nothing is compared with the record, because the policy
or the learned lines may differ. `what_if.py` compares policies; `tuning/projections.py` finds what changed a turn.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kitchener.actors.executor.execution import WorkOrderFailed
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.canonical import canonical_bytes, digest
from kitchener.ledger import LedgerEntry, StoredEntry
from kitchener.memory.index import OVERLAYS
from kitchener.memory.signals import normalise
from kitchener.records import events
from kitchener.records.prompt import OnAttempt, PromptRequest, PromptResponse, StreamItem
from kitchener.records.ref import Ref
from kitchener.records.tokens import estimate_tokens
from kitchener.replaying.doubles import RecordedClock, RecordedMemory
from kitchener.replaying.session import Replays
from kitchener.replaying.tape import Tape, TurnTape

_LONG: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Shown:
    """What a model is shown in one turn."""

    items: tuple[str, ...] = ()
    """Ids of turns, rules, intents and learned lines, in order."""
    suppressed: tuple[str, ...] = ()
    """Ids of what is eligible and not shown in full, each with its reason."""
    lines: tuple[str, ...] = ()
    """The learned lines, best first."""
    text: str = ""
    """The context, as it stands in the prompt."""
    tokens: int = 0
    """Of the context, estimated."""
    prefix_tokens: int = 0
    """Of its beginning that is the same as in the turn before: what a provider's cache can keep."""


class OpenTape(Tape):
    """A tape that takes whatever is written, and keeps the projection."""

    def __init__(self, tape: Tape) -> None:
        super().__init__(tape.session_id, tape.entries, ho2m=tape.ho2m, names=tape.names)
        self.known = self.recordings()
        self.projection: Mapping[str, object] | None = None
        """The one that the turn's context is made of."""
        self._learned_to: int | None = None
        self._written: dict[tuple[str, str], str] = {}
        self._intents: list[tuple[str, str]] = []

    def begin(self, turn: TurnTape | None, learned_to: int | None = None) -> None:
        """Puts the tape to a turn.

        Args:
            turn: which one
            learned_to: what was learned counts up to this entry of the overlays ledger; None: as far as the turn could read
        """
        super().begin(turn)
        self.projection, self._intents, self._learned_to = None, [], learned_to
        self._place(self.positions)

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
            self._place(self.turn.end.payload.get("read_positions", self.positions))
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

    def _place(self, positions: Mapping[str, int]) -> None:
        at = {} if self._learned_to is None else {OVERLAYS: self._learned_to}
        self.positions = {**positions, **at}

    def _keep_lists(self, stored: StoredEntry) -> None:
        self._lists[stored.entry_id] = self.lists_of(stored.payload)


class OpenGateway:
    """Gives each step of a turn what the same step was answered then, whatever it is asked now."""

    def __init__(self, tape: OpenTape) -> None:
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


class OpenMemory(RecordedMemory):
    """The recorded memory, which takes whatever is logged and keeps none of it."""

    async def log_signal(
        self,
        signal_id: str,
        session_id: str,
        event_id: str | None = None,
        metadata: Mapping[str, object] | None = None,
        *,
        namespace: str,
    ) -> str:
        """Takes note of nothing."""
        normalise(signal_id, self.kinds)
        turn = self._tape.turn
        self.last_logged_ts = turn.started.payload["turn_ts"] if turn is not None else ""
        return str(event_id)


class Rerun:
    """A session's turns, run again under one policy; each session has its own.

    Args:
        replays: the policy, and where the session is
        tape: the session
    """

    def __init__(self, replays: Replays, tape: Tape) -> None:
        self._replays, self.tape = replays, OpenTape(tape)
        self._clock, self._gateway = RecordedClock(), OpenGateway(self.tape)
        self._memory = replays.memory_for(self.tape, self._clock, OpenMemory)
        self._supervisor: HO2Supervisor | None = None

    async def views(self) -> dict[str, Shown]:
        """What would be shown in each completed turn."""
        has_intents = any(each.entry_type == events.INTENT_DECLARED for each in self.tape.entries[self.tape.ho2m])
        found: dict[str, Shown] = {}
        before = ""
        for turn in self.tape.turns:
            if turn.is_replayable:
                if has_intents and not self.tape.is_on_record(turn):
                    self._supervisor = None
                found[turn.turn_id] = shown = await self._view(turn, before)
                before = shown.text
        return found

    async def view(self, turn: TurnTape, learned_to: int) -> Shown:
        """What one turn would be shown after its recorded past, knowing what the overlays ledger held up to an entry."""
        self._supervisor = None
        return await self._view(turn, "", learned_to)

    async def _view(self, turn: TurnTape, before: str, learned_to: int | None = None) -> Shown:
        tape, started = self.tape, turn.started.payload
        tape.begin(turn, learned_to)
        self._gateway.begin()
        self._clock.put_to(started["turn_ts"])
        if self._supervisor is None:
            ledgers = self._replays.ledgers_for(tape)
            self._supervisor = self._replays.supervisor_for(tape, ledgers, self._clock, self._memory, self._gateway)
        session = await self._supervisor.session(tape.session_id)
        session.state.turn_count = int(turn.turn_id.rpartition("-")[2]) - 1  # turns that were skipped had numbers too
        await self._supervisor.handle_turn(
            started["user_message"], session_id=tape.session_id, memory=started.get("memory", True), deadline=_LONG
        )
        return _shown(tape, self._gateway.context or {}, before, self._replays.recorded.agent.token_estimator)


def _shown(tape: OpenTape, context: Mapping[str, Any], before: str, estimator: str) -> Shown:
    lines = tuple(context.get("ho3_biases", ()))
    text = "\n\n".join([*lines, str(context.get("context_text", ""))])
    items: dict[str, None] = {}
    suppressed: tuple[str, ...] = ()
    if tape.projection is not None:
        lists = tape.lists_of(tape.projection)
        items |= dict.fromkeys(tape.name_of(ref) for ref in lists.visible)
        suppressed = tuple(f"{tape.name_of(ref)} {reason}" for ref, reason in lists.suppressed)
    items |= dict.fromkeys(str(each["source_id"]) for each in context.get("fragments", ()))
    same = text[: _common(before, text)]
    return Shown(tuple(items), suppressed, lines, text, estimate_tokens(text, estimator), estimate_tokens(same, estimator))


def _common(one: str, other: str) -> int:
    """Characters with which both begin."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
