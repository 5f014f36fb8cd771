"""Replays one session: runs its turns again through the real supervisor and executor, and compares them with the record.

Models and tools return their recorded answers. Memory is read as of the recorded times. Every new entry is compared with
the recorded one. Nothing is written and no lock is taken. Explained in `docs/replay.md`.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from kitchener.actors.authority.agent_ruleset import recall_scope_of
from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.actors.sessions.item_tool import ContextItems
from kitchener.actors.sources import RequestSources, SourcesSealed
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.tools.tool import Tool
from kitchener.config import HO2Config, RuntimeConfig
from kitchener.errors import LedgerDamaged, UnknownSession
from kitchener.ids import anonymous_subject, memory_namespace
from kitchener.lanes.calling_chain import called_by
from kitchener.ledger import StoredEntry
from kitchener.ledger.format.imported import ImportedEntry
from kitchener.ledger.verify.checkpoint import read_checkpoint
from kitchener.memory.subject_cache import OVERLAYS, SIGNALS, signal_keys
from kitchener.plain_names import counted
from kitchener.records import events
from kitchener.records.entries import OverlayPayload, SessionStartPayload, WorkOrderPlannedPayload, payload_as
from kitchener.records.index_keys import CONSOLIDATIONS_KEY, SIGNERS_KEY, shared_intents_key, subject_index_key
from kitchener.records.prompt import PromptGateway
from kitchener.replaying.consolidations import PREFIX, Consolidation, ConsolidationTape
from kitchener.replaying.doubles import (
    RecordedClock,
)
from kitchener.replaying.on_record.before_import import ledgers_before_import
from kitchener.replaying.on_record.recorded_ledgers import RecordedLedgers, open_recorded
from kitchener.replaying.on_record.recorded_sources import (
    PresentSources,
    RecordedConfigurations,
    SourceChange,
    recorded_outputs,
)
from kitchener.replaying.on_record.turn_tape import TurnTape, item_name
from kitchener.replaying.recorded_memory import RecordedLearning, RecordedMemory
from kitchener.replaying.replay_ledgers import ReplayLedger, ReplayLedgers
from kitchener.replaying.replay_supervisors import ReplaySupervisors, run_turn
from kitchener.replaying.report import PolicyChange, ReplayDivergence, ReplayReport
from kitchener.replaying.signatures import RecordedSigners
from kitchener.replaying.tape import Diverged, Tape
from kitchener.runtime.agents.class_tools import tools_of
from kitchener.runtime.root_layout import ledger_ids, ledger_paths, settings_and_class_of
from kitchener.runtime.tools.connected_servers import wanted_tools

_ANONYMOUS: Final = anonymous_subject("")


async def replay_session(
    session_id: str,
    *,
    config: RuntimeConfig | str | Path | None = None,
    root: str | Path | None = None,
    agent_class: str | None = None,
    tools: Sequence[Callable[..., object]] = (),
) -> ReplayReport:
    """Replays a session and reports whether every decision equals the recorded one.

    Args:
        session_id: which session
        config: path of a `kitchener.toml`, or a `RuntimeConfig`; None: as for `open_runtime`
        root: overrides `plane_root`
        agent_class: the agent class of the session; None: the one whose ledger has it
        tools: the tools that were passed to `open_runtime`. They are not run, but requests contain their schemas.

    Raises:
        UnknownSession: no ledger contains the session
        LedgerDamaged: a ledger does not verify
        ConfigError, PromptError, ToolError: the settings, prompts or tools of the agent class are wrong
    """
    settings, found = await settings_and_class_of(session_id, config, root, agent_class)
    async with open_replays(settings, found, tools=tools) as replays:
        return await replays.replay(session_id)


class Replays:
    """Replays sessions of one agent class; made by `open_replays`."""

    def __init__(
        self,
        settings: RuntimeConfig,
        recorded: RecordedLedgers,
        tools: ToolRegistry,
        prompts: PromptLibrary,
        *,
        unnamed_tools: ToolRegistry,
        sources: RequestSources | None = None,
    ) -> None:
        self.recorded: RecordedLedgers = recorded
        self.settings: RuntimeConfig = settings
        self.agent_class: str = recorded.agent.agent_class
        self.prompts: PromptLibrary = prompts
        self._tools, self._unnamed_tools = tools, unnamed_tools
        self.sources: PresentSources = PresentSources(recorded.agent, tools, sources, settings.router.request_fields)
        self.supervisors: ReplaySupervisors = ReplaySupervisors(
            recorded.agent, settings, prompts, tools, unnamed_tools, self.sources
        )
        self._signers: RecordedSigners | None = None
        self._configurations = RecordedConfigurations(recorded.sources)
        self._known_names: dict[str, dict[tuple[str, str], str]] = {}

    async def sessions(self) -> list[str]:
        """The sessions on record, oldest first."""
        return await self.recorded.sessions()

    async def consolidations(self) -> list[str]:
        """The pseudo-sessions of consolidations, oldest first; none if memory is off."""
        reader = self.recorded.readers.get(self.recorded.ho2m)
        if reader is None or self.recorded.memory is None:
            return []
        read = reader.read(key=CONSOLIDATIONS_KEY, entry_type=events.WO_PLANNED)
        planned = [(str(each.session_id), payload_as(WorkOrderPlannedPayload, each.payload)) async for each in read]
        return list(dict.fromkeys(session_id for session_id, plan in planned if "consolidates" in plan))

    async def replay(self, session_id: str) -> ReplayReport:
        """Replays a session, or a pseudo-session of `consolidations`.

        Raises:
            UnknownSession: it is not on record
        """
        report = await self._replay(session_id)
        return report.without_key(await self.recorded.missing_key(session_id) if report.erased else "")

    async def _replay(self, session_id: str) -> ReplayReport:
        if session_id.startswith(PREFIX):
            return await self._replay_consolidations(await self.consolidation_tape(session_id))
        before = await ledgers_before_import(self.recorded, session_id)
        if before is None:
            return await _Replay(self, await self.tape_of(session_id)).run()
        earlier = Replays(self.settings, before, self._tools, self.prompts, unnamed_tools=self._unnamed_tools)
        imported = await earlier.replay(session_id)
        is_done = imported.divergence is not None
        return imported if is_done else imported.then(await _Replay(self, await self.tape_of(session_id)).run())

    async def _replay_consolidations(self, tape: ConsolidationTape) -> ReplayReport:
        clock, ledgers, config = RecordedClock(), self.ledgers_for(tape), self.recorded.memory
        done, skipped = list[str](), dict[str, str]()
        divergence: ReplayDivergence | None = None
        try:
            for each in tape.consolidations:
                if not each.is_replayable or config is None:
                    skipped[each.turn_id] = each.skipped_as
                    continue
                await self.run_consolidation(tape, each, ledgers, clock)
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

    async def run_consolidation(
        self,
        tape: ConsolidationTape,
        each: Consolidation,
        ledgers: ReplayLedgers,
        clock: RecordedClock,
        gateway: PromptGateway | None = None,
    ) -> None:
        """Runs a recorded consolidation again. Memory must be on."""
        assert self.recorded.memory is not None
        tape.begin(each)
        clock.put_to(each.started.timestamp)
        signals, overlays = (self._ledger(name, tape) for name in (SIGNALS, OVERLAYS))
        about = each.about
        memory = RecordedLearning(signals, overlays, self.recorded.memory, clock, about)
        supervisor = self.supervisors.of(tape, ledgers, clock, memory, gateway)
        await supervisor.run_consolidation([about["signal_id"]], namespace=about["namespace"], gate_ts=about["gate_ts"])

    async def consolidation_tape(self, session_id: str) -> ConsolidationTape:
        recorded = self.recorded
        entries, subject_id = await self._read(session_id, (recorded.ho2m, recorded.ho1m))
        entries[OVERLAYS] = await self._overlays_of(subject_id)
        tape = ConsolidationTape(session_id, entries, ho1m=recorded.ho1m, ho2m=recorded.ho2m)
        for each in tape.consolidations:
            self._require({recorded.ho1m: 1} if each.end is not None else {}, f"consolidation {each.turn_id}")
        return tape

    async def tape_of(self, session_id: str) -> Tape:
        """The recorded entries of a session. Its turns are those that ran in this root.

        Raises:
            UnknownSession: it is not on record
            LedgerDamaged: a ledger is missing that a turn has read
        """
        ho2m = self.recorded.ho2m
        # HO2m first: a turn's end becomes durable after everything it depends on, so the other ledgers then have all of it.
        ledger_ids = (ho2m, *sorted(self.recorded.readers.keys() - {OVERLAYS, ho2m}))
        entries, subject_id = await self._read(session_id, ledger_ids)
        names, signers = await self._names(subject_id), await self._recorded_signers()
        outputs = await recorded_outputs(self.recorded.sources, entries[ho2m])
        found = await self._configurations.of(entries[ho2m])
        tape = Tape(session_id, entries, ho2m=ho2m, names=names, signers=signers, outputs=outputs, configurations=found)
        for turn in tape.turns:
            self._require(turn.read_positions, f"turn {turn.turn_id}")
        return tape

    def _require(self, read_positions: Mapping[str, int], reader: str) -> None:
        """Raises LedgerDamaged if a ledger is missing of which something on record has read entries.

        Without the check, a replay would report as divergence that the recorded answers are not there. The two ledgers of the
        memory are used together, so both have to be there, even if one is empty.
        """
        missing = {
            ledger_id: ledger_paths(self.settings, self.agent_class)[name]
            for name, ledger_id in ledger_ids(self.agent_class).items()
            if ledger_id not in self.recorded.readers
        }
        for ledger_id, path in missing.items():
            seq = read_positions.get(ledger_id, 0)
            if ledger_id in (SIGNALS, OVERLAYS):
                is_needed = self.recorded.memory is not None and ledger_id in read_positions
            else:
                is_needed = seq > 0
            if is_needed:
                expected = f"the ledger {ledger_id}, of which {reader} read {counted(seq, 'entry', 'entries')}"
                raise LedgerDamaged(str(path), line=1, offset=0, field="file", expected=expected, found="nothing")

    async def _read(self, session_id: str, ledger_ids: Iterable[str]) -> tuple[dict[str, Sequence[StoredEntry]], str]:
        """The session's entries by ledger id, and its subject."""
        entries: dict[str, Sequence[StoredEntry]] = {}
        for ledger_id in ledger_ids:
            if (reader := self.recorded.readers.get(ledger_id)) is not None:
                entries[ledger_id] = [entry async for entry in reader.read(session_id=session_id)]
        if not (own := entries.get(self.recorded.ho2m)):
            raise UnknownSession(session_id, self.agent_class)
        return entries, events.read_common(own[0])["subject_id"]

    async def _recorded_signers(self) -> RecordedSigners:
        """Who signed projections, from the ledgers. Read once, because a root has few signers."""
        if self._signers is None:
            readers, ho2m = self.recorded.readers.values(), self.recorded.readers[self.recorded.ho2m]
            held = [await anyio.to_thread.run_sync(read_checkpoint, each.path) for each in readers]
            declared = [entry async for entry in ho2m.read(key=SIGNERS_KEY)]
            self._signers = RecordedSigners(declared, [head.public_key for head in held if head is not None])
        return self._signers

    async def _overlays_of(self, subject_id: str) -> list[StoredEntry]:
        """The entries of the overlays ledger about a subject."""
        reader = self.recorded.readers.get(OVERLAYS)
        (key,) = signal_keys("", {"namespace": memory_namespace(self.agent_class, subject_id)})
        return [] if reader is None else [entry async for entry in reader.read(key=key)]

    async def _names(self, subject_id: str) -> dict[tuple[str, str], str]:
        """Names for entries outside the session that it may show: learned lines, shared intents, turns of other sessions.

        Read once for each subject, because all its sessions may show all its turns.
        """
        if subject_id not in self._known_names:
            self._known_names[subject_id] = await self._read_names(subject_id)
        return self._known_names[subject_id]

    async def _read_names(self, subject_id: str) -> dict[tuple[str, str], str]:
        recorded, found = self.recorded, dict[tuple[str, str], str]()
        for entry in await self._overlays_of(subject_id):
            found[OVERLAYS, entry.entry_id] = payload_as(OverlayPayload, entry.payload).get("artifact_id") or entry.entity_id
        keys = [shared_intents_key(subject_id)]
        if recall_scope_of(recorded.agent) == "subject":
            keys.append(subject_index_key(subject_id))
        if (ho2m := recorded.readers.get(recorded.ho2m)) is not None:
            sessions = set[str]()
            for each in keys:
                async for entry in ho2m.read(key=each):
                    found[recorded.ho2m, entry.entry_id] = item_name(entry)
                    sessions |= {entry.session_id} if entry.session_id is not None else set()
            for each in sorted(sessions):
                async for entry in ho2m.read(session_id=each, entry_type=events.TURN_STARTED):
                    found[recorded.ho2m, entry.entry_id] = item_name(entry)
        return found

    def ledgers_for(self, tape: Tape) -> ReplayLedgers:
        """The ledgers for the replay of one session."""
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
        """The memory that the session's turns used; None: the turns used no memory, or its ledgers are missing."""
        readers, config = self.recorded.readers, self.recorded.memory
        if config is None or SIGNALS not in readers or OVERLAYS not in readers:
            return None
        return kind(readers[SIGNALS], readers[OVERLAYS], config, clock, tape)


@asynccontextmanager
async def open_replays(
    settings: RuntimeConfig, agent_class: str, *, tools: Sequence[Callable[..., object]] = (), verify: bool = True
) -> AsyncIterator[Replays]:
    """Verifies the ledgers of an agent class from the first entry, and yields what replays its sessions.

    Args:
        settings: complete settings, as `settings_of` returns them
        agent_class: the agent class
        tools: the tools that were passed to `open_runtime`
        verify: whether to verify the ledgers; False: the caller did

    Raises:
        LedgerDamaged: a ledger does not verify
        ConfigError, PromptError, ToolError: the settings, prompts or tools of the agent class are wrong
    """
    async with open_recorded(settings, agent_class) as recorded:
        for reader in recorded.readers.values() if verify else ():
            report = await reader.verify()
            if report.fault is not None:
                raise report.fault
        yield await replays_now(settings, recorded, tools)


async def replays_now(
    settings: RuntimeConfig, recorded: RecordedLedgers, tools: Sequence[Callable[..., object]] = ()
) -> Replays:
    """Replays sessions under the present settings; see `open_replays`."""
    agent = recorded.agent
    load = partial(
        tools_of,
        agent,
        _known(agent, tools),
        ContextItems(),
        servers=wanted_tools(agent, settings),
        given_by="the argument `tools`, or by `--tool` of a command",
    )
    registry = await anyio.to_thread.run_sync(partial(load, is_configured=bool(settings.classes)))
    unnamed = await anyio.to_thread.run_sync(partial(load, is_configured=False))
    prompts = await anyio.to_thread.run_sync(PromptLibrary.load, agent.prompt_dir)
    return Replays(settings, recorded, registry, prompts, unnamed_tools=unnamed)


def _known(agent: HO2Config, tools: Sequence[Callable[..., object]]) -> tuple[Callable[..., object], ...]:
    """The tools given, without those that the settings load."""
    loaded = {name.rpartition(":")[2] for name in agent.tools or () if ":" in name}
    return tuple(each for each in tools if not (isinstance(each, Tool) and each.tool_id in loaded))


class _Replay:
    """One session's replay."""

    def __init__(self, replays: Replays, tape: Tape) -> None:
        self._replays, self._tape = replays, tape
        self._clock = RecordedClock()
        self._ledgers = replays.ledgers_for(tape)
        self._memory = replays.memory_for(tape, self._clock)
        self._ruleset_hash = replays.supervisors.ruleset_hash(self._memory)
        self._supervisor: HO2Supervisor | None = None
        self._policy: PolicyChange | None = None
        self._changes: tuple[SourceChange, ...] = ()
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
                await self._note_changes(turn)
                await self._run(turn)
                self._done[turn.turn_id] = tape.visible_items()
        except Diverged as stop:
            # No completed turn was aborted, so a turn that fails now has an error that says more than the divergence.
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
            changes=self._changes,
            visible=self._done,
            nested_turns=tuple(each for turn in tape.turns for each in turn.nested_turns),
        )

    async def _open(self) -> None:
        """Replays `SESSION_START`, and an intent that begins the session. Entries of another program stay as they are."""
        first = self._tape.entries[self._tape.ho2m][0]
        is_start = first.entry_type == events.SESSION_START and not isinstance(first, ImportedEntry)
        types = {each.entry_type for each in self._tape.opening}
        if not is_start or events.CONVERSATION_IMPORTED in types or any(turn.is_erased for turn in self._tape.turns):
            return
        self._tape.begin(None)
        self._clock.put_to(first.timestamp)
        self._note_policy(self._tape.turns[0] if self._tape.turns else None)
        started = payload_as(SessionStartPayload, first.payload)
        subject_id = started["subject_id"]
        # A tool may start a session for the anonymous subject of its own session; no other caller may name this subject.
        with called_by(subject_id.removeprefix(_ANONYMOUS)):
            await self._fresh().start_session(
                self._tape.session_id, subject_id=subject_id, external_id=started.get("external_id")
            )

    async def _run(self, turn: TurnTape) -> None:
        tape = self._tape
        is_same = tape.policy_version == turn.policy_version
        supervisor = self._supervisor if tape.follows(turn) and is_same else None
        tape.begin(turn)
        self._note_policy(turn)
        self._clock.put_to(turn.start["turn_ts"])
        # After entries that were not replayed, the session is read back from the ledger, as after a restart.
        await run_turn(supervisor or self._fresh(), tape, turn)
        tape.finish()

    def _fresh(self) -> HO2Supervisor:
        self._supervisor = self._replays.supervisors.of(self._tape, self._ledgers, self._clock, self._memory)
        return self._supervisor

    async def _note_changes(self, turn: TurnTape) -> None:
        if not self._changes:
            sources, config_hash = self._replays.recorded.sources, turn.start.get("config_hash", "")
            with suppress(SourcesSealed):
                self._changes = await self._replays.sources.changes_since(sources, config_hash, self._memory)

    def _note_policy(self, turn: TurnTape | None) -> None:
        recorded = turn.start.get("ruleset_hash") if turn is not None else None
        self._tape.policy_differs = recorded is not None and recorded != self._ruleset_hash
        if turn is not None and self._tape.policy_differs and self._policy is None:
            self._policy = PolicyChange(turn_id=turn.turn_id, recorded=str(recorded), now=self._ruleset_hash)
