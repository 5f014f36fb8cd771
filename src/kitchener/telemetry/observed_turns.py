"""The components of an agent class that also tell what they do: turns, memory, tools, commits.

Each is the component itself with one method around it, so a runtime without telemetry has nothing of them.
"""

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.trace import SpanKind

from kitchener.actors.admission.admission import TurnLimiter
from kitchener.actors.consolidation.consolidator import Consolidator
from kitchener.actors.consolidation.lesson import Case
from kitchener.actors.sessions.active_session import SessionManager
from kitchener.actors.sessions.directory import SessionDirectory
from kitchener.actors.sessions.queue import SessionQueue
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.tools.results import ToolOutcome
from kitchener.actors.turn.present_tools import PresentTools
from kitchener.actors.turn.reply import TurnOutcome
from kitchener.actors.turn.runner import TurnRunner
from kitchener.actors.turn.services import TurnServices
from kitchener.actors.turn_memory import LongTermMemory, TurnMemory
from kitchener.lanes.askers import ids_of_turn
from kitchener.ledger import LateLedgers, LedgerClient
from kitchener.memory.overlays import Overlay
from kitchener.records.tools.tool_context import ToolContext
from kitchener.records.turn import TurnCall, TurnResult, UpdateListener
from kitchener.records.work_order import WorkOrder
from kitchener.telemetry import names
from kitchener.telemetry.captured_content import attribute_json, turn_content
from kitchener.telemetry.spans import AttributeValue, OpenSpan, Tracing


class ObservedRunner(TurnRunner):
    """Runs turns, each in a span `invoke_agent {class}`."""

    def __init__(
        self, tracing: Tracing, tools: PresentTools, sessions: SessionDirectory, limiter: TurnLimiter, abort_grace_s: float
    ) -> None:
        super().__init__(tools, sessions, limiter, abort_grace_s)
        self._tracing, self._agent_class = tracing, self._tools.services.config.agent_class

    async def run(
        self, session: SessionManager, queue: SessionQueue, message: str, call: TurnCall, listener: UpdateListener | None
    ) -> TurnOutcome:
        known: dict[str, AttributeValue] = {
            names.OPERATION: names.INVOKE_AGENT,
            names.AGENT_NAME: self._agent_class,
            names.CONVERSATION_ID: session.session_id,
            names.SESSION_ID: session.session_id,
            names.TURN_ID: session.next_turn_id(),
        }
        if call.resumes is not None:
            known[names.APPROVAL_ANSWERED] = call.resumes["approval_ids"]
        labels: Mapping[str, AttributeValue] = {names.AGENT_NAME: self._agent_class}
        duration, name = self._tracing.instruments.agent, f"{names.INVOKE_AGENT} {self._agent_class}"
        with OpenSpan(self._tracing, name, SpanKind.INTERNAL, known, duration, labels) as turn:
            result: TurnResult | None = None
            try:
                outcome = await super().run(session, queue, message, call, listener)
                result = outcome.result
                return outcome
            finally:
                turn.note(lambda: self._end(session, message, result))
                if result is not None and result.error is not None:
                    turn.fail(result.error.kind)

    def _end(self, session: SessionManager, message: str, result: TurnResult | None) -> dict[str, AttributeValue]:
        """What a span says of the end of its turn; `result`: None if the turn was aborted."""
        known: dict[str, AttributeValue] = {names.LEDGER_ENTRY: session.state.head}
        if result is not None:
            spent = result.cost_summary
            known[names.INPUT_TOKENS], known[names.OUTPUT_TOKENS] = spent["input_tokens"], spent["output_tokens"]
            known[names.QUALITY_PASSED] = result.quality_gate_passed
            if result.pending_approval:
                known[names.APPROVAL_PENDING] = list(result.pending_approval)
        if self._tracing.content.in_spans:
            said = turn_content(message, result.response if result is not None else None)
            known |= {key: attribute_json(value) for key, value in said.items()}
        return known


class ObservedTools(ToolRegistry):
    """Runs tools, each call in a span `execute_tool {tool}`. A turn that the tool takes is inside that span."""

    def __init__(self, tracing: Tracing, *given: Any, **named: Any) -> None:  # those of a `ToolRegistry`
        super().__init__(*given, **named)
        self.tracing = tracing

    async def run(
        self,
        tool_id: str,
        arguments: Mapping[str, object],
        call: ToolContext,
        *,
        bound: Mapping[str, object] | None = None,
    ) -> ToolOutcome:
        found = self._tools.get(tool_id)
        kind = "extension" if found is not None and found.source.startswith("mcp:") else "function"
        labels: dict[str, AttributeValue] = {names.TOOL_NAME: tool_id, names.TOOL_TYPE: kind}
        known: dict[str, AttributeValue] = {names.OPERATION: names.EXECUTE_TOOL, **labels, **_place()}
        name, duration = f"{names.EXECUTE_TOOL} {tool_id}", self.tracing.instruments.tool
        with OpenSpan(self.tracing, name, SpanKind.INTERNAL, known, duration, labels) as running:
            if self.tracing.content.in_spans:
                running.note(lambda: {names.TOOL_ARGUMENTS: attribute_json(arguments)})
            outcome = await super().run(tool_id, arguments, call, bound=bound)
            if outcome.question is not None:
                running.note({names.APPROVAL_QUESTION: True})
            elif outcome.error is not None:
                running.fail("tool_error")
            if self.tracing.content.in_spans and outcome.question is None:
                running.note(lambda: {names.TOOL_RESULT: outcome.as_text()})
            return outcome


@dataclass(frozen=True, slots=True)
class ObservedMemory(TurnMemory):
    """Selects learned lines, in a span `search_memory`."""

    tracing: Tracing

    async def recall(
        self, subject_id: str, labels: Mapping[str, str], turn_ts: str, positions: Mapping[str, int]
    ) -> Sequence[Overlay]:
        known: dict[str, AttributeValue] = {
            names.OPERATION: names.SEARCH_MEMORY,
            names.AGENT_NAME: self.agent_class,
            **_place(),
        }
        with OpenSpan(self.tracing, names.SEARCH_MEMORY, SpanKind.INTERNAL, known) as searching:
            found = await TurnMemory.recall(self, subject_id, labels, turn_ts, positions)
            searching.note({names.MEMORY_LINES: len(found)})
            return found


class ObservedConsolidator(Consolidator):
    """Consolidates signals, each in a span `upsert_memory`. It begins after the reply, beside the span of the turn."""

    def __init__(
        self, tracing: Tracing, agent_class: str, services: TurnServices, memory: LongTermMemory, abort_grace_s: float
    ) -> None:
        super().__init__(agent_class, services, memory, abort_grace_s)
        self._tracing = tracing

    async def learn(self, case: Case, number: int) -> WorkOrder:
        known: dict[str, AttributeValue] = {
            names.OPERATION: names.UPSERT_MEMORY,
            names.AGENT_NAME: self._agent_class,
            names.SESSION_ID: case.session_id,
        }
        with OpenSpan(self._tracing, names.UPSERT_MEMORY, SpanKind.INTERNAL, known) as learning:
            done = await super().learn(case, number)
            learning.note({names.WORK_ORDER_ID: done.wo_id})
            if done.state != "completed":
                learning.fail(done.error.reason if done.error is not None else done.state)
            return done


class ObservedLedgers(LateLedgers):
    """Commits ledgers, each wait in a span `kitchener.commit`."""

    def __init__(self, tracing: Tracing, *, also: Iterable[LedgerClient] = ()) -> None:
        super().__init__(also=also)
        self._tracing = tracing

    def commit(self) -> Coroutine[object, object, None]:
        """Commits within a span."""
        return self._commit()

    async def _commit(self) -> None:
        known: dict[str, AttributeValue] = {names.LEDGER_ID: self.ho2m.ledger_id, **_place()}
        with OpenSpan(self._tracing, names.COMMIT, SpanKind.INTERNAL, known) as waiting:
            await self._group.commit()
            waiting.note({names.LEDGER_POSITION: self.ho2m.position})


def _place() -> dict[str, AttributeValue]:
    """The session, the turn and the work order for which this task runs, if there are any."""
    return {_PLACE[name]: value for name, value in ids_of_turn().items()}


_PLACE = {"session_id": names.SESSION_ID, "turn_id": names.TURN_ID, "wo_id": names.WORK_ORDER_ID}
