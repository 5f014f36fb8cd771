"""Replays one session: runs its turns again through the real supervisor and executor, and compares them with the record.

Models and tools return their recorded answers. Memory is read as of the recorded times. Every new entry is compared with
the recorded one. Nothing is written and no lock is taken. Explained in `docs/replay.md`.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio.to_thread

from kitchener.actors.assembly import Host
from kitchener.actors.executor.executor import HO1Executor
from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.actors.policy_identity import policy_identity
from kitchener.actors.sessions.item_tool import ContextItems
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.actors.tools.registry import Tool, ToolRegistry
from kitchener.actors.turn_memory import LongTermMemory
from kitchener.actors.work.budget import TokenBudgeter
from kitchener.config import HO2Config, RuntimeConfig
from kitchener.errors import UnknownSession
from kitchener.gateway.providers.recorded import RecordedProvider
from kitchener.ids import memory_namespace
from kitchener.ledger import LedgerReader, StoredEntry
from kitchener.memory.index import OVERLAYS, SIGNALS, signal_keys
from kitchener.records import events
from kitchener.records.prompt import PromptGateway, PromptRequest
from kitchener.replaying.consolidations import PREFIX, ConsolidationTape
from kitchener.replaying.doubles import (
    RecordedClock,
    RecordedExecutor,
    RecordedGateway,
    RecordedLearning,
    RecordedMemory,
    RecordedTools,
)
from kitchener.replaying.recorded_ledgers import RecordedLedgers, open_recorded
from kitchener.replaying.recorded_routes import Routes
from kitchener.replaying.replay_ledgers import ReplayLedger, ReplayLedgers
from kitchener.replaying.report import PolicyChange, ReplayDivergence, ReplayReport
from kitchener.replaying.tape import Diverged, Tape, TurnTape
from kitchener.runtime.agent import tools_of
from kitchener.runtime.ledger_paths import agent_classes, class_of, settings_of

_DAY_S: Final = 86_400.0
"""Deadline of a replayed turn, seconds: how long it took once is taken as given."""
_NO_LIMIT: Final = {"consolidation": "manual", "turn_deadline_s": _DAY_S, "consolidation_deadline_s": _DAY_S}
"""Settings of a replay: nothing begins by itself, and its own speed decides nothing."""


async def replay_session(
    session_id: str,
    *,
    config: RuntimeConfig | str | Path | None = None,
    root: str | Path | None = None,
    agent_class: str | None = None,
    tools: Sequence[Callable[..., object]] = (),
) -> ReplayReport:
    """Replays a session and says whether every decision comes out as it was recorded.

    Args:
        session_id: which session
        config: path of a `kitchener.toml`, or a `RuntimeConfig`; None: the embedded defaults
        root: overrides `plane_root`
        agent_class: whose session; None: whoever has it
        tools: what was given to `open_runtime`; they are not run, but their schemas are part of what a model was asked

    Raises:
        UnknownSession: no ledger has it
        LedgerDamaged: a ledger is not what was written
        ConfigError, PromptError, ToolError: the agent class cannot be put together
    """
    settings = await anyio.to_thread.run_sync(partial(settings_of, config, root))
    classes = [agent_class] if agent_class is not None else await anyio.to_thread.run_sync(agent_classes, settings)
    found = await class_of(settings, session_id, classes)
    async with open_replays(settings, found, tools=tools) as replays:
        return await replays.replay(session_id)


class Replays:
    """Replays sessions of one agent class; made by `open_replays`."""

    def __init__(self, settings: RuntimeConfig, recorded: RecordedLedgers, tools: ToolRegistry, prompts: PromptLibrary) -> None:
        self.agent_class = recorded.agent.agent_class
        self.recorded, self.settings = recorded, settings
        self._tools, self._prompts = tools, prompts
        self._identities: dict[bool, str] = {}
        """The identity of the policy, with and without long-term memory."""

    async def sessions(self) -> list[str]:
        """The sessions on record, oldest first."""
        return await self.recorded.sessions()

    async def consolidations(self) -> list[str]:
        """The pseudo-sessions in which something was learned, or tried to be, oldest first; none where memory is off."""
        reader = self.recorded.readers.get(self.recorded.ho2m)
        if reader is None or self.recorded.memory is None:
            return []
        planned = reader.read(entry_type=events.WO_PLANNED)
        return list(dict.fromkeys([str(each.session_id) async for each in planned if "consolidates" in each.payload]))

    async def replay(self, session_id: str) -> ReplayReport:
        """One session, or one of `consolidations`.

        Raises:
            UnknownSession: it is not on record
        """
        if session_id.startswith(PREFIX):
            return await self._replay_consolidations(await self._consolidation_tape(session_id))
        tape = await self.tape_of(session_id)
        return await _Replay(self, tape).run()

    async def _replay_consolidations(self, tape: ConsolidationTape) -> ReplayReport:
        clock, ledgers, config = RecordedClock(), self.ledgers_for(tape), self.recorded.memory
        done, skipped = list[str](), dict[str, str]()
        divergence: ReplayDivergence | None = None
        try:
            for each in tape.consolidations:
                if not each.is_replayable or config is None:
                    skipped[each.turn_id] = each.skipped_as
                    continue
                tape.begin(each)
                clock.put_to(each.started.timestamp)
                signals, overlays = (self._ledger(name, tape) for name in (SIGNALS, OVERLAYS))
                about = each.about
                memory = RecordedLearning(signals, overlays, config, clock, about)
                supervisor = self.supervisor_for(tape, ledgers, clock, memory)
                await supervisor.run_consolidation([about["signal_id"]], namespace=about["namespace"], gate_ts=about["gate_ts"])
                tape.finish()
                done.append(each.turn_id)
        except Diverged as stop:
            divergence = stop.divergence
        return ReplayReport(
            session_id=tape.session_id,
            agent_class=self.agent_class,
            consolidations=tuple(done),
            skipped=skipped,
            divergence=divergence,
        )

    async def _consolidation_tape(self, session_id: str) -> ConsolidationTape:
        recorded, entries = self.recorded, dict[str, list[StoredEntry]]()
        for ledger_id in (recorded.ho2m, recorded.ho1m):
            if (reader := recorded.readers.get(ledger_id)) is not None:
                entries[ledger_id] = [entry async for entry in reader.read(session_id=session_id)]
        if not entries.get(recorded.ho2m):
            raise UnknownSession(session_id, self.agent_class)
        subject_id = str(entries[recorded.ho2m][0].payload["subject_id"])
        if (reader := recorded.readers.get(OVERLAYS)) is not None:
            (key,) = signal_keys("", {"namespace": memory_namespace(self.agent_class, subject_id)})
            entries[OVERLAYS] = [entry async for entry in reader.read(key=key)]
        return ConsolidationTape(session_id, entries, ho1m=recorded.ho1m, ho2m=recorded.ho2m)

    async def tape_of(self, session_id: str) -> Tape:
        """What was recorded of a session.

        Raises:
            UnknownSession: nothing
        """
        entries: dict[str, list[StoredEntry]] = {}
        # HO2m first: what a turn rests on is durable before its end is, so the others then have all of it.
        for ledger_id in sorted(self.recorded.readers.keys() - {OVERLAYS}, key=lambda each: (each != self.recorded.ho2m, each)):
            reader = self.recorded.readers[ledger_id]
            entries[ledger_id] = [entry async for entry in reader.read(session_id=session_id)]
        if not entries.get(self.recorded.ho2m):
            raise UnknownSession(session_id, self.agent_class)
        subject_id = str(entries[self.recorded.ho2m][0].payload["subject_id"])
        return Tape(session_id, entries, ho2m=self.recorded.ho2m, names=await self._names(subject_id))

    async def _names(self, subject_id: str) -> dict[tuple[str, str], str]:
        """What a subject's sessions may be shown from beyond: learned lines, shared intents, turns of other sessions."""
        recorded, found = self.recorded, dict[tuple[str, str], str]()
        overlays, ho2m = recorded.readers.get(OVERLAYS), recorded.readers.get(recorded.ho2m)
        if overlays is not None:
            (key,) = signal_keys("", {"namespace": memory_namespace(self.agent_class, subject_id)})
            async for entry in overlays.read(key=key):
                found[OVERLAYS, entry.entry_id] = str(entry.payload.get("artifact_id") or entry.entity_id)
        keys = [events.shared_intents_key(subject_id)]
        if recorded.agent.recall_scope == "subject":
            keys.append(events.subject_index_key(subject_id))
        if ho2m is not None:
            for each in keys:
                async for entry in ho2m.read(key=each):
                    found[recorded.ho2m, entry.entry_id] = entry.entity_id
        return found

    def ledgers_for(self, tape: Tape) -> ReplayLedgers:
        """The ledgers of one session's replay."""
        ho1m, ho2m, context = (
            self._ledger(each, tape) for each in (self.recorded.ho1m, self.recorded.ho2m, self.recorded.context)
        )
        return ReplayLedgers(ho1m, ho2m, context, tape)

    def _ledger(self, ledger_id: str, tape: Tape) -> ReplayLedger:
        recorded = self.recorded
        return ReplayLedger(ledger_id, recorded.readers.get(ledger_id), tape, self.settings.ledger, recorded.sealer)

    def memory_for(
        self, tape: Tape, clock: RecordedClock, kind: type[RecordedMemory] = RecordedMemory
    ) -> RecordedMemory | None:
        """The memory as the session's turns used it; None: they use none, or there is none."""
        readers, config = self.recorded.readers, self.recorded.memory
        if config is None or SIGNALS not in readers or OVERLAYS not in readers:
            return None
        return kind(readers[SIGNALS], readers[OVERLAYS], config, clock, tape)

    def supervisor_for(
        self,
        tape: Tape,
        ledgers: ReplayLedgers,
        clock: RecordedClock,
        memory: LongTermMemory | None,
        gateway: PromptGateway | None = None,
    ) -> HO2Supervisor:
        """The supervisor that the session runs through, with doubles below it.

        Args:
            tape: the session
            ledgers, clock, memory: made for it
            gateway: None: gives recorded answers to the recorded requests and to no others
        """
        agent = self.recorded.agent.model_copy(update=_NO_LIMIT)
        tools = RecordedTools(self._tools, tape)
        provider = RecordedProvider(tape.recordings(), request_hash=self._hashed_by(ledgers))
        routes = Routes(self.settings.router, tape.providers())
        executor = HO1Executor(
            ledgers=ledgers,
            gateway=gateway or RecordedGateway(tape, provider, routes),
            prompts=self._prompts,
            tools=tools,
            clock=clock,
            config=agent,
        )
        return HO2Supervisor(
            agent_class=self.agent_class,
            ho1_executor=RecordedExecutor(executor, ledgers.ho1m, tape),
            ledgers=ledgers,
            token_budgeter=TokenBudgeter(),
            config=agent if memory is not None else agent.model_copy(update={"ho3_enabled": False}),
            ho3_memory=memory,
            degraded_call=_recorded_reply(tape),
            tools=tools,
            clock=clock,
            host=Host(limits=self.settings.limits, ruleset_hash=self.ruleset_hash(memory)),
        )

    def ruleset_hash(self, memory: LongTermMemory | None) -> str:
        """The identity of the policy at hand; its files are read once."""
        is_used = memory is not None
        if is_used not in self._identities:
            self._identities[is_used] = policy_identity(self.recorded.agent, memory.config if memory is not None else None)
        return self._identities[is_used]

    def _hashed_by(self, ledgers: ReplayLedgers) -> Callable[[PromptRequest], str]:
        def request_hash(request: PromptRequest) -> str:
            data = self._prompts.contract(request.contract_id).request_bytes(
                request.messages,
                tools_digest=self._tools.toolset(tuple(spec.tool_id for spec in request.tools)).digest,
                model_id=request.model_id,
                temperature=request.temperature,
                max_tokens=request.max_tokens,
            )
            return ledgers.ho1m.content_digest(request.subject_id, data)

        return request_hash


@asynccontextmanager
async def open_replays(
    settings: RuntimeConfig, agent_class: str, *, tools: Sequence[Callable[..., object]] = (), verify: bool = True
) -> AsyncIterator[Replays]:
    """What replays sessions of an agent class, its ledgers verified from their first entry on.

    Args:
        settings: complete, as `settings_of` gives them
        agent_class: whose sessions
        tools: what was given to `open_runtime`
        verify: False: the caller has verified the ledgers

    Raises:
        LedgerDamaged: a ledger is not what was written
        ConfigError, PromptError, ToolError: the agent class cannot be put together
    """
    async with open_recorded(settings, agent_class) as recorded:
        for reader in recorded.readers.values() if verify else ():
            await _verify(reader)
        builtin = (ContextItems().tool,) if recorded.agent.context_mode == "enforce" else ()
        registry = await anyio.to_thread.run_sync(tools_of, recorded.agent, _known(recorded.agent, tools), builtin)
        prompts = await anyio.to_thread.run_sync(PromptLibrary.load, recorded.agent.prompt_dir)
        yield Replays(settings, recorded, registry, prompts)


async def _verify(reader: LedgerReader) -> None:
    report = await reader.verify()
    if report.fault is not None:
        raise report.fault


def _known(agent: HO2Config, tools: Sequence[Callable[..., object]]) -> tuple[Callable[..., object], ...]:
    """The tools given, without those that the settings load by themselves."""
    loaded = {name.rpartition(":")[2] for name in agent.tools or () if ":" in name}
    return tuple(each for each in tools if not (isinstance(each, Tool) and each.tool_id in loaded))


def _recorded_reply(tape: Tape) -> Any:
    async def degraded_call(message: str, *, session_id: str, deadline: float) -> str:
        """What was answered when HO1 had broken down."""
        end = tape.turn.end if tape.turn is not None else None
        return str(end.payload.get("response", "")) if end is not None else ""

    return degraded_call


class _Replay:
    """One session's replay."""

    def __init__(self, replays: Replays, tape: Tape) -> None:
        self._replays, self._tape = replays, tape
        self._clock = RecordedClock()
        self._ledgers = replays.ledgers_for(tape)
        self._memory = replays.memory_for(tape, self._clock)
        self._ruleset_hash = replays.ruleset_hash(self._memory)
        self._supervisor: HO2Supervisor | None = None
        self._policy: PolicyChange | None = None
        self._done: dict[str, tuple[str, ...]] = {}

    async def run(self) -> ReplayReport:
        tape, skipped = self._tape, dict[str, str]()
        divergence: ReplayDivergence | None = None
        try:
            await self._open()
            for turn in tape.turns:
                if not turn.is_replayable:
                    skipped[turn.turn_id] = turn.skipped_as
                    continue
                await self._run(turn)
                self._done[turn.turn_id] = tape.visible_items()
        except Diverged as stop:
            # A turn that fails is aborted, which no completed turn was; its own error says more.
            if isinstance(stop.__context__, Exception):
                raise stop.__context__ from None
            divergence = stop.divergence
        return ReplayReport(
            session_id=tape.session_id,
            agent_class=self._replays.agent_class,
            turns=tuple(self._done),
            skipped=skipped,
            divergence=divergence,
            policy=self._policy,
            visible=self._done,
        )

    async def _open(self) -> None:
        """`SESSION_START`, and the first intent where the session begins with one."""
        first = self._tape.entries[self._tape.ho2m][0]
        if first.entry_type != events.SESSION_START or any(turn.is_erased for turn in self._tape.turns):
            return
        self._tape.begin(None)
        self._clock.put_to(first.timestamp)
        self._note_policy(self._tape.turns[0] if self._tape.turns else None)
        started = first.payload
        await self._fresh().start_session(
            self._tape.session_id, subject_id=started["subject_id"], external_id=started.get("external_id")
        )

    async def _run(self, turn: TurnTape) -> None:
        tape, started = self._tape, turn.started.payload
        supervisor = self._supervisor if tape.follows(turn) else None
        tape.begin(turn)
        self._note_policy(turn)
        self._clock.put_to(started["turn_ts"])
        # After anything that was taken as given, the session comes back from the record, as after a restart.
        await (supervisor or self._fresh()).handle_turn(
            started["user_message"], session_id=tape.session_id, memory=started.get("memory", True), deadline=_DAY_S
        )
        tape.finish()

    def _fresh(self) -> HO2Supervisor:
        self._supervisor = self._replays.supervisor_for(self._tape, self._ledgers, self._clock, self._memory)
        return self._supervisor

    def _note_policy(self, turn: TurnTape | None) -> None:
        recorded = turn.started.payload.get("ruleset_hash") if turn is not None else None
        self._tape.policy_differs = recorded is not None and recorded != self._ruleset_hash
        if turn is not None and self._tape.policy_differs and self._policy is None:
            self._policy = PolicyChange(turn_id=turn.turn_id, recorded=str(recorded), now=self._ruleset_hash)
