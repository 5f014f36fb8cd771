"""Builds the supervisors that run recorded turns again, and runs a turn. Only models, tools, memory and clock are doubles.

Settings left out get the defaults of the policy version that a turn ran with. `doubles.py` has the doubles. `session_replay.py`
decides which sessions are replayed, and from which ledgers.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import anyio

from kitchener.actors.assembly import SharedResources
from kitchener.actors.authority.agent_ruleset import BEFORE_6, recall_scope_of
from kitchener.actors.executor.direct_call import GatewayDirectCall
from kitchener.actors.executor.executor import HO1Executor
from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.actors.executor.reply_contract import OBJECT_REPLY, direct_contract_of
from kitchener.actors.policy_identity import policy_identity
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.tools.toolsets import chosen_digest, toolset_of
from kitchener.actors.turn_memory import LongTermMemory
from kitchener.actors.work.budget import TokenBudgeter
from kitchener.config import HO2Config, RuntimeConfig
from kitchener.gateway.providers.recorded import RecordedProvider
from kitchener.lanes.calling_chain import ToolRun, called_by
from kitchener.records import events
from kitchener.records.entries import WorkOrderPlannedPayload, opened, payload_as, text_of
from kitchener.records.prompt import PromptGateway, PromptRequest
from kitchener.records.turn import TurnCall
from kitchener.replaying.doubles import (
    RecordedClock,
    RecordedDirectCall,
    RecordedExecutor,
    RecordedGateway,
    RecordedScores,
    RecordedTools,
    recorded_client_tools,
    taped_output,
)
from kitchener.replaying.on_record.recorded_sources import PresentSources
from kitchener.replaying.on_record.route_differences import Routes
from kitchener.replaying.on_record.turn_tape import TurnTape, providers_of, recordings_of
from kitchener.replaying.replay_ledgers import ReplayLedgers
from kitchener.replaying.tape import Tape

_DEADLINE_S: Final = 86_400.0
"""Deadline of a replayed turn, seconds. It never passes, because the duration of the turn is recorded."""
_NO_LIMIT: Final = {"consolidation": "manual", "turn_deadline_s": _DEADLINE_S, "consolidation_deadline_s": _DEADLINE_S}
"""Settings of a replay: no consolidation starts by itself, and the speed of the replay decides nothing."""


def without_memory(agent: HO2Config, policy_version: int) -> HO2Config:
    """The settings of a class without long-term memory. They recall from where the class did before."""
    changes: dict[str, object] = {"ho3_enabled": False}
    if policy_version > 2:
        changes["recall_scope"] = recall_scope_of(agent)
    return agent.model_copy(update=changes)


def of_version(agent: HO2Config, policy_version: int) -> HO2Config:
    """The settings of a class with the defaults of a version of the policy."""
    changes: dict[str, object] = {}
    if policy_version == 1:
        changes["recalled_results"] = 0
        if "turn_budget" not in agent.model_fields_set:
            changes["turn_budget"] = 16_000
    if policy_version < 6:
        changes |= {key: value for key, value in BEFORE_6.items() if key not in agent.model_fields_set}
    if policy_version < 4 and "synthesize_contract_id" not in agent.model_fields_set:
        changes["synthesize_contract_id"] = OBJECT_REPLY
    return agent.model_copy(update=changes)


@dataclass(frozen=True, slots=True)
class _Stage:
    """The components of one replay."""

    tape: Tape
    ledgers: ReplayLedgers
    clock: RecordedClock
    gateway: PromptGateway
    agent: HO2Config
    """The settings of the agent class, as turns of `version` follow them."""
    version: int
    """The recorded version of the policy."""


class ReplaySupervisors:
    """Makes supervisors that run the turns of one agent class again.

    Args:
        agent: the present settings of the agent class
        settings: those of its runtime
        prompts: its prompts
        tools: the tools that its settings give it
        unnamed_tools: the tools that it has if its settings name none
        sources: the sources of its requests
    """

    def __init__(
        self,
        agent: HO2Config,
        settings: RuntimeConfig,
        prompts: PromptLibrary,
        tools: ToolRegistry,
        unnamed_tools: ToolRegistry,
        sources: PresentSources,
    ) -> None:
        self._agent, self._settings, self._prompts = agent, settings, prompts
        self._tools, self._unnamed_tools, self._sources = tools, unnamed_tools, sources
        self._identities: dict[bool, str] = {}
        """The identity of the policy, with and without long-term memory."""

    def of(
        self,
        tape: Tape,
        ledgers: ReplayLedgers,
        clock: RecordedClock,
        memory: LongTermMemory | None,
        gateway: PromptGateway | None = None,
    ) -> HO2Supervisor:
        """A supervisor that runs a session's turns.

        Args:
            tape: the session
            ledgers, clock, memory: made for it
            gateway: the gateway; None: one that answers only recorded requests
        """
        version, tools = tape.policy_version, self._tools_for(tape)
        agent = of_version(self._agent.model_copy(update=_NO_LIMIT), version)
        stage = _Stage(tape, ledgers, clock, gateway or self._gateway_for(tape, ledgers), agent, version)
        return HO2Supervisor(
            agent_class=agent.agent_class,
            ho1_executor=self._executor(stage, tools),
            ledgers=ledgers,
            token_budgeter=TokenBudgeter(),
            config=agent if memory is not None else without_memory(agent, version),
            ho3_memory=memory,
            direct_call=self._direct_call(stage),
            tools=tools,
            clock=clock,
            host=self._resources(stage, memory),
        )

    def _tools_for(self, tape: Tape) -> RecordedTools:
        # Once, a configured class that named no tools had all of them. What was offered is on record.
        tools = RecordedTools(self._unnamed_tools if _offers_any(tape, self._unnamed_tools.tool_ids) else self._tools, tape)
        if tape.turn is not None:
            tools.begin(tape.turn)
        tape.on_begin = tools.begin
        return tools

    def _gateway_for(self, tape: Tape, ledgers: ReplayLedgers) -> RecordedGateway:
        provider = RecordedProvider(recordings_of(tape.turns), request_hash=self.hashed_by(ledgers))
        return RecordedGateway(tape, ledgers.ho1m, provider, Routes(self._settings.router, providers_of(tape.turns)))

    def _executor(self, stage: _Stage, tools: RecordedTools) -> RecordedExecutor:
        executor = HO1Executor(
            ledgers=stage.ledgers,
            gateway=stage.gateway,
            prompts=self._prompts,
            tools=tools,
            clock=stage.clock,
            config=stage.agent,
            policy_version=stage.version,
        )
        return RecordedExecutor(executor, stage.ledgers.ho1m, stage.tape)

    def _direct_call(self, stage: _Stage) -> RecordedDirectCall:
        direct_call = GatewayDirectCall(
            ledgers=stage.ledgers,
            gateway=stage.gateway,
            prompts=self._prompts,
            clock=stage.clock,
            config=stage.agent,
            contract_id=direct_contract_of(stage.agent, stage.version),
        )
        return RecordedDirectCall(direct_call, stage.tape)

    def _resources(self, stage: _Stage, memory: LongTermMemory | None) -> SharedResources:
        tape = stage.tape
        return SharedResources(
            limits=self._settings.limits,
            ruleset_hash=self.ruleset_hash(memory),
            sources=self._sources.of(memory),
            policy_version=stage.version,
            media_types=lambda *_: tuple(tape.turn.start.get("media_types", ())) if tape.turn is not None else (),
            comparer=RecordedScores(tape),
        )

    def ruleset_hash(self, memory: LongTermMemory | None) -> str:
        """The identity of the current policy. Its files are read once."""
        is_used = memory is not None
        if is_used not in self._identities:
            self._identities[is_used] = policy_identity(self._agent, memory.config if memory is not None else None)
        return self._identities[is_used]

    def hashed_by(self, ledgers: ReplayLedgers) -> Callable[[PromptRequest], str]:
        """Computes the `request_hash` of a request as the recorded turns did."""

        def request_hash(request: PromptRequest) -> str:
            data = (
                self._prompts.contract(request.contract_id)
                .asking(request.output_schema)
                .request_bytes(
                    request.messages,
                    tools_digest=chosen_digest(toolset_of(request.tools).digest, request.tool_choice),
                    model_id=request.model_id,
                    temperature=request.temperature,
                    max_tokens=request.max_tokens,
                )
            )
            return ledgers.ho1m.content_digest(request.subject_id, data)

        return request_hash


async def run_turn(supervisor: HO2Supervisor, tape: Tape, turn: TurnTape) -> None:
    """Runs a recorded turn again, with its message and options."""
    if not turn.start.get("after_untrusted"):
        return await _run_turn(supervisor, tape, turn)
    with called_by("", ToolRun(has_read_untrusted=True)):
        await _run_turn(supervisor, tape, turn)


async def _run_turn(supervisor: HO2Supervisor, tape: Tape, turn: TurnTape) -> None:
    started = turn.start
    if (resumes := started.get("resumes")) is not None:
        call = TurnCall(
            session_id=tape.session_id,
            deadline=anyio.current_time() + _DEADLINE_S,
            memory=started.get("memory", True),
            acceptance=tuple(opened(started.get("acceptance", ())) or ()),
            output=taped_output(tape, turn),
            resumes=resumes,
            client_tools=recorded_client_tools(tape, turn),
        )
        await supervisor.handle_call(text_of(started["user_message"]), call)
        return
    client_tools = recorded_client_tools(tape, turn)
    await supervisor.handle_turn(
        text_of(started["user_message"]),
        session_id=tape.session_id,
        memory=started.get("memory", True),
        acceptance=opened(started.get("acceptance", ())) or (),
        speaker=opened(started.get("speaker")),
        parts=turn.parts,  # type: ignore[arg-type]  # as they are stored, so that no bytes are read
        output=taped_output(tape, turn),  # with the recorded judgement of the caller's own model
        deadline=_DEADLINE_S,
        tool_choice=started.get("tool_choice", "auto"),
        client_tools=client_tools or (),  # as they were checked then
    )


def _offers_any(tape: Tape, tool_ids: Iterable[str]) -> bool:
    """Whether any work order of the session may use one of these tools."""
    entries = (entry for entry in tape.entries.get(tape.ho2m, ()) if entry.entry_type == events.WO_PLANNED)
    planned = (payload_as(WorkOrderPlannedPayload, entry.payload) for entry in entries)
    wanted = frozenset(tool_ids)
    return any(not wanted.isdisjoint(each["constraints"].get("allowed_tools", ())) for each in planned)
