"""Runs recorded turns again without a model call, and returns what the model would be shown.

Each turn gets the recorded past, message, classification and reply. Nothing is compared with the record, because the policy
or the learned lines may differ. `what_if.py` compares policies; `tuning/memory_bisect.py` finds what changed a turn.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from kitchener.actors.executor.execution import WorkOrderFailed
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.canonical import digest
from kitchener.ledger import LedgerEntry, StoredEntry
from kitchener.ledger.format.lines import body_of
from kitchener.memory.subject_cache import OVERLAYS
from kitchener.records import events
from kitchener.records.entries import ProjectionPayload, WorkOrderPlannedPayload, payload_as
from kitchener.records.prompt import OnAttempt, PromptRequest, PromptResponse, StreamItem
from kitchener.records.ref import Ref
from kitchener.records.tokens import estimate_tokens
from kitchener.replaying.doubles import RecordedClock
from kitchener.replaying.on_record.turn_tape import TurnTape, item_name, recordings_of
from kitchener.replaying.recorded_memory import RecordedMemory
from kitchener.replaying.replay_supervisors import run_turn
from kitchener.replaying.session_replay import Replays
from kitchener.replaying.tape import NO_TIME, Tape


@dataclass(frozen=True, slots=True)
class ShownContext:
    """The items and the text that one turn shows the model."""

    items: tuple[str, ...] = ()
    """Ids of turns, rules, intents and learned lines, in order."""
    suppressed: tuple[str, ...] = ()
    """Ids of eligible items that are not shown in full, each with the reason."""
    lines: tuple[str, ...] = ()
    """The learned lines, best first."""
    text: str = ""
    """The context as in the prompt."""
    tokens: int = 0
    """Estimated size of the context."""
    prefix_tokens: int = 0
    """Estimated size of the start that equals the turn before, which a provider can cache."""


class _Fragment(TypedDict):
    source_id: str


class _RerunContext(TypedDict, total=False):
    """The input of a reply's prompt."""

    context_text: str
    ho3_biases: Sequence[str]
    """The learned lines."""
    fragments: Sequence[_Fragment]
    stable_text: str
    history: Sequence[str]
    """Chat messages of earlier turns."""


class RerunTape(Tape):
    """A tape that accepts every entry without a comparison, and keeps the projection."""

    def __init__(self, tape: Tape, *, is_other: bool = False) -> None:
        super().__init__(tape.session_id, tape.entries, ho2m=tape.ho2m, names=tape.names, outputs=tape.outputs)
        self.is_other_policy = is_other
        self.known = recordings_of(self.turns)
        self.projection: ProjectionPayload | None = None
        """The projection that the turn's context shows; None: attention gathered it."""
        self._learned_to: int | None = None
        self._written: dict[tuple[str, str], str] = {}
        self._intents: list[tuple[str, str]] = []

    def begin(self, turn: TurnTape | None, learned_to: int | None = None) -> None:
        """Moves to the start of a turn.

        Args:
            turn: the turn
            learned_to: last visible entry of the overlays ledger; None: the last one that the turn could read
        """
        super().begin(turn)
        self.projection, self._intents, self._learned_to = None, [], learned_to
        self._place(self.positions)

    def is_on_record(self, turn: TurnTape) -> bool:
        """Whether the past before a turn is the recorded one: the last rerun turn wrote the recorded intents."""
        if self.turn is None or self.before(turn) != self.turn.entries[self.ho2m][-1].seq:
            return False
        then = [(each.entry_type, each.entity_id) for each in self.turn.entries[self.ho2m]]
        return self._intents == [each for each in then if each[0].startswith("INTENT_")]

    def next_of(self, ledger_id: str) -> StoredEntry | None:
        """None: no entry is expected."""
        return None

    def take(self, ledger_id: str, entry: LedgerEntry) -> StoredEntry:
        """Returns the entry as if it were stored."""
        moment = self.turn.start["turn_ts"] if self.turn is not None else NO_TIME
        number = len(self._written) + 1
        body = body_of(*entry, moment)
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
        self._written[ledger_id, stored.entry_id] = item_name(stored)
        if entry.entry_type == events.TURN_STARTED and self.turn is not None:
            self._place(self.turn.read_positions)
        if ledger_id == self.ho2m and entry.entry_type.startswith("INTENT_"):
            self._intents.append((entry.entry_type, entry.entity_id))
        if entry.entry_type == events.PROJECTION_COMPUTED:
            projection = events.read_as(ProjectionPayload, stored)
            self.projection = projection if projection["mode"] == "enforce" else None
            if self.projection is not None:
                self._lists[stored.ref] = self.lists_of(self.projection)
        return stored

    def name_of(self, ref: Ref) -> str:
        """The entity that a reference stands for."""
        return self._written.get((ref.ledger_id, ref.entry_id)) or super().name_of(ref)

    def _place(self, positions: Mapping[str, int]) -> None:
        at = {} if self._learned_to is None else {OVERLAYS: self._learned_to}
        self.positions = {**positions, **at}


class RerunGateway:
    """Answers each step of a turn with the recorded answer to that step, whatever the request is."""

    def __init__(self, tape: RerunTape) -> None:
        self._tape = tape
        self.context: _RerunContext | None = None
        """The context of the turn's first reply."""
        self._asked: dict[str, list[str]] = {}

    def begin(self) -> None:
        """Prepares for the next turn."""
        self.context, self._asked = None, {}

    async def complete(self, request: PromptRequest, *, on_attempt: OnAttempt) -> PromptResponse:
        """The recorded answer.

        Raises:
            WorkOrderFailed: no answer is recorded; the shown items do not depend on it
        """
        if request.wo_type == "synthesize" and self.context is None:
            self.context = request.variables["assembled_context"]
        same_type = self._asked.setdefault(request.wo_type, [])
        if request.wo_id not in same_type:
            same_type.append(request.wo_id)
        place = same_type.index(request.wo_id)
        read = self._tape.of_turn(events.WO_PLANNED)
        planned = [(each.entity_id, payload_as(WorkOrderPlannedPayload, each.payload)) for each in read]
        then = [wo_id for wo_id, plan in planned if plan.get("wo_type") == request.wo_type]
        recording = self._tape.known.get((then[place], request.call)) if place < len(then) else None
        if recording is None:
            raise WorkOrderFailed("PROVIDER", "this call was not recorded", "not_recorded")
        return recording.response

    async def stream(self, request: PromptRequest, *, on_attempt: OnAttempt) -> AsyncIterator[StreamItem]:
        """The recorded answer as a stream of one item."""
        yield await self.complete(request, on_attempt=on_attempt)


class RerunMemory(RecordedMemory):
    """The recorded memory. It ignores signals that are logged."""

    async def log_turn(self, signal_ids: Iterable[str], session_id: str, turn_id: str, *, namespace: str) -> None:
        """Keeps nothing."""
        turn = self._tape.turn
        self.last_logged_ts = turn.start["turn_ts"] if turn is not None else ""


class Rerun:
    """Runs the turns of one session again under one policy.

    Args:
        replays: the policy, and where the session is
        tape: the session
        is_other: whether the policy is not the one of the recorded session
    """

    def __init__(self, replays: Replays, tape: Tape, *, is_other: bool = False) -> None:
        self.tape: RerunTape = RerunTape(tape, is_other=is_other)
        self._replays = replays
        self._clock, self._gateway = RecordedClock(), RerunGateway(self.tape)
        self._memory = replays.memory_for(self.tape, self._clock, RerunMemory)
        self._supervisor: HO2Supervisor | None = None

    async def views(self) -> dict[str, ShownContext]:
        """What the model would be shown in each completed turn, by turn id."""
        has_intents = any(each.entry_type == events.INTENT_DECLARED for each in self.tape.entries[self.tape.ho2m])
        found: dict[str, ShownContext] = {}
        before = ""
        for turn in self.tape.turns:
            if turn.is_replayable:
                if has_intents and not self.tape.is_on_record(turn):
                    self._supervisor = None
                found[turn.turn_id] = shown = await self._view(turn, before)
                before = shown.text
        return found

    async def view(self, turn: TurnTape, learned_to: int) -> ShownContext:
        """What the model would be shown in one turn, with the memory as it was at an entry of the overlays ledger."""
        self._supervisor = None
        return await self._view(turn, "", learned_to)

    async def _view(self, turn: TurnTape, before: str, learned_to: int | None = None) -> ShownContext:
        tape = self.tape
        before_it = tape.policy_version
        tape.begin(turn, learned_to)
        if tape.policy_version != before_it:
            self._supervisor = None
        self._gateway.begin()
        self._clock.put_to(turn.start["turn_ts"])
        if self._supervisor is None:
            ledgers = self._replays.ledgers_for(tape)
            self._supervisor = self._replays.supervisors.of(tape, ledgers, self._clock, self._memory, self._gateway)
        session = await self._supervisor.session(tape.session_id)
        session.state.turn_count = int(turn.turn_id.rpartition("-")[2]) - 1  # skipped turns have numbers too
        await run_turn(self._supervisor, tape, turn)
        return _shown(tape, self._gateway.context or {}, before, self._replays.recorded.agent.token_estimator)


def _shown(tape: RerunTape, context: _RerunContext, before: str, estimator: str) -> ShownContext:
    lines = tuple(context.get("ho3_biases", ()))
    before_lines = [context["stable_text"]] if context.get("stable_text") else []
    text = "\n\n".join([*before_lines, *lines, *context.get("history", ()), context.get("context_text", "")])
    items: dict[str, None] = {}
    suppressed: tuple[str, ...] = ()
    if tape.projection is not None:
        lists = tape.lists_of(tape.projection)
        items |= dict.fromkeys(tape.name_of(ref) for ref in lists.visible)
        suppressed = tuple(f"{tape.name_of(ref)} {reason}" for ref, reason in lists.suppressed)
    items |= dict.fromkeys(each["source_id"] for each in context.get("fragments", ()))
    same = text[: _common(before, text)]
    return ShownContext(
        tuple(items), suppressed, lines, text, estimate_tokens(text, estimator), estimate_tokens(same, estimator)
    )


def _common(one: str, other: str) -> int:
    """Length of the common prefix."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
