"""HO2: plans turns as chains of work orders and owns the sessions of one agent class. It never calls a model.

Start reading here. Each step in handling a message is one line, and an object in a file: `request_checks.py` checks arguments,
`idempotency.py` finds an earlier answer, `directory.py` finds the session, `admitted_turns.py` waits until the turn may begin,
`runner.py` holds it to its deadline, and `turn.py` has its steps. `assembly.py` builds them. Explained in `docs/turn.md`.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial

import anyio
from pydantic import BaseModel

from kitchener.actors.admission.content_checks import ContentChecks
from kitchener.actors.admission.outside_entries import OutsideEntries
from kitchener.actors.approval.given_answer import GivenAnswer
from kitchener.actors.assembly import SharedResources, SupervisorArguments, assemble
from kitchener.actors.attention.retriever import AttentionRetriever
from kitchener.actors.erasure_guard import ErasureGuard
from kitchener.actors.sessions.active_session import SessionManager
from kitchener.actors.sessions.fresh_ids import check_session_id
from kitchener.actors.sessions.item_tool import ContextItems
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.turn.reply import TurnOutcome
from kitchener.actors.turn.services import DegradedCall
from kitchener.actors.turn.updates import streamed
from kitchener.actors.turn_memory import LongTermMemory
from kitchener.actors.work.budget import TokenBudgeter
from kitchener.cancellation import raises_cut_off
from kitchener.clock import Clock, SystemClock
from kitchener.config import HO2Config
from kitchener.errors import CallerError, RuntimeClosed
from kitchener.ids import IdSource, IntentId, SessionId
from kitchener.ledger import LedgerGroup
from kitchener.records.entries import ApprovalScope, IntentScope, Json
from kitchener.records.output_schema import OutputSchema
from kitchener.records.parts import FilePart, ReadPart
from kitchener.records.tools.client_tools import ClientOutput, ClientTool, ClientToolset
from kitchener.records.turn import OutputT, TurnCall, TurnCompleted, TurnResult, TurnUpdate, UpdateListener, as_asked
from kitchener.records.work_order import DirectCall, HO1ExecutorProtocol, WorkOrder


class HO2Supervisor:
    """Runs the sessions and turns of one agent class.

    Args:
        agent_class: the name of the agent class
        ho1_executor: runs work orders
        ledgers: the ledgers of this agent class
        token_budgeter: tracks the token budgets of sessions, turns and work orders
        config: policies and limits
        ho3_memory: long-term memory; used only if `ho3_enabled` is set
        attention: gathers context; None: from the session's own history, with the agent class's template
        degraded_call: answers when HO1 is broken; None: `direct_call` does
        direct_call: asks the gateway when HO1 is broken; None: the turn replies with an apology
        tools: tools that the executor may run; None: no tools
        context_items: the executor's built-in tool that reads stubs in full; None: no such tool
        clock: time of day; None: the system clock
        ids: source of new session ids; None: random ids
        host: resources shared by the runtime; None: the defaults of `SharedResources`
    """

    def __init__(  # noqa: PLR0913  assembled in one place by the runtime, by hand in tests; all by keyword
        self,
        *,
        agent_class: str,
        ho1_executor: HO1ExecutorProtocol,
        ledgers: LedgerGroup,
        token_budgeter: TokenBudgeter,
        config: HO2Config,
        ho3_memory: LongTermMemory | None = None,
        attention: AttentionRetriever | None = None,
        degraded_call: DegradedCall | None = None,
        direct_call: DirectCall | None = None,
        tools: ToolRegistry | None = None,
        context_items: ContextItems | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        host: SharedResources | None = None,
    ) -> None:
        self._host = host or SharedResources()
        given = SupervisorArguments(
            agent_class=agent_class,
            executor=ho1_executor,
            ledgers=ledgers,
            budgeter=token_budgeter,
            config=config,
            memory=ho3_memory,
            attention=attention,
            degraded_call=degraded_call,
            direct_call=direct_call,
            tools=tools or ToolRegistry(),
            context_items=context_items,
            clock=clock or SystemClock(),
            ids=ids,
            host=self._host,
        )
        parts = assemble(given)
        self.agent_class: str = agent_class
        self.config: HO2Config = config
        self.attention: AttentionRetriever = parts.attention
        self.content: ContentChecks = parts.content_checks
        """Checks a message and its images and files before its session exists."""
        self.erasure: ErasureGuard = parts.erasure
        """Stops the sessions of a subject for an erasure. The runtime calls it."""
        self.outside: OutsideEntries = parts.outside
        """Adds entries to sessions that no turn writes. The runtime calls it."""
        self._ledgers, self._checks, self._content, self._keys = ledgers, parts.checks, parts.content, parts.keys
        self._sessions, self._admission, self._limiter = parts.sessions, parts.admission, parts.limiter
        self._turns, self._consolidations, self._approvals = parts.turns, parts.consolidations, parts.approvals
        self._intents, self._authority, self._sources = parts.intents, parts.authority, parts.sources

    async def handle_turn(  # noqa: PLR0913  written out, as `**options` would hide them from `help`, notebooks and a TypeError
        self,
        message: str,
        *,
        session_id: str | None = None,
        subject_id: str | None = None,
        idempotency_key: str | None = None,
        memory: bool = True,
        deadline: float | None = None,
        acceptance: Sequence[str] = (),
        parts: Sequence[FilePart | ReadPart] = (),
        speaker: str | None = None,
        output: type[OutputT] | Mapping[str, object] | OutputSchema | None = None,
        tool_choice: str = "auto",
        client_tools: Sequence[ClientTool] | ClientToolset = (),
        listener: UpdateListener | None = None,
    ) -> TurnResult[OutputT]:
        """Returns the reply to a message after its record is durable.

        Cancelling this call cancels the turn, its work order and its model call. The session stays usable.

        Args:
            message: text
            session_id: the session; None: starts a new session
            subject_id: the subject of the conversation; must match the session's subject
            idempotency_key: messages with the same key run one turn only, even after a restart
            memory: False: this turn neither reads nor writes long-term memory
            deadline: seconds from now for the whole call, including time in queues; None: `turn_deadline_s` from its start
            acceptance: criteria that the reply must meet, besides those of the agent class: `min_chars:N`, `max_chars:N`,
                `contains:TEXT` or `not_contains:TEXT`. If a reply fails a criterion, a retry names the criterion
            parts: images and files of the message, see `ImagePart` and `FilePart`; refused if the model does not take them
            speaker: the name of the person who says the message, in a conversation of several people; None: the subject
            output: a pydantic model, or a JSON schema of an object, that the reply must fit. The result has the object as
                `output`, and its text as `response`; None: the reply is text
            tool_choice: what the model must call first: `none`, `required` or the name of a tool; `auto`: it chooses
            client_tools: tools that the caller runs; if the model calls some, the result has `client_calls`
            listener: is awaited with each update as it happens, except `TurnCompleted`; None: no updates

        Raises:
            CallerError: an argument is wrong (its subclasses say why); nothing was started
            Overloaded: a queue was full until the deadline; nothing was started
            TurnTimeout, TurnOverloaded, TurnReplaced: the turn was aborted
            LedgerError: the turn's record could not be made durable
            ActorStopped: a part that the turn called was cancelled, but not by the caller
        """
        with raises_cut_off("the turn"):
            call = self._checks.call(
                session_id=session_id,
                subject_id=subject_id,
                idempotency_key=idempotency_key,
                memory=memory,
                deadline=deadline,
                acceptance=acceptance,
                parts=parts,
                speaker=speaker,
                output=output,
                tool_choice=tool_choice,
                client_tools=client_tools,
            )
            outcome = await self.handle_call(message, call, listener)
        self._consolidations.start(outcome.gates)
        return as_asked(outcome.result, call.output)

    async def stream_turn(  # noqa: PLR0913  as `handle_turn`
        self,
        message: str,
        *,
        session_id: str | None = None,
        subject_id: str | None = None,
        idempotency_key: str | None = None,
        memory: bool = True,
        deadline: float | None = None,
        acceptance: Sequence[str] = (),
        parts: Sequence[FilePart | ReadPart] = (),
        speaker: str | None = None,
        output: type[BaseModel] | Mapping[str, object] | OutputSchema | None = None,
        tool_choice: str = "auto",
        client_tools: Sequence[ClientTool] | ClientToolset = (),
    ) -> AsyncGenerator[TurnUpdate, None]:
        """Runs a turn like `handle_turn` and yields its updates; the last one is `TurnCompleted`.

        The arguments and errors are those of `handle_turn`. Closing the generator cancels the turn: use `contextlib.aclosing`
        where you may stop reading early. Text is provisional until the turn completes: `TextRetracted` withdraws the text of a
        failed attempt.
        """
        if self._host.tasks is None:
            raise CallerError("stream_turn needs a runtime (open_runtime); a supervisor assembled by hand has handle_turn")
        self._host.loop.check()
        call = self._checks.call(
            session_id=session_id,
            subject_id=subject_id,
            idempotency_key=idempotency_key,
            memory=memory,
            deadline=deadline,
            acceptance=acceptance,
            parts=parts,
            speaker=speaker,
            output=output,
            tool_choice=tool_choice,
            client_tools=client_tools,
        )

        async def run(tell: UpdateListener) -> None:
            outcome = await self.handle_call(message, call, tell)
            await tell(TurnCompleted(as_asked(outcome.result, call.output)))
            self._consolidations.start(outcome.gates)

        async with aclosing(streamed(run, self._host.tasks, self._host.limits.stream_buffer)) as updates:
            async for update in updates:
                yield update

    async def handle_call(self, message: str, call: TurnCall, listener: UpdateListener | None = None) -> TurnOutcome:
        """Runs the turn of a message with checked options: idempotency, session, admission, turn. A replay calls it too."""
        message, key = self._checks.message(message), call.idempotency_key
        if call.parts:
            call = await self._content.read(call)
        await self._ready(listener)
        if key is not None:
            return await self._handle_once(key, message, call, listener)
        self._checks.size(message, self._ledgers.ho2m.config)
        session = await self._sessions.find_or_start(call.session_id, call.subject_id)
        return await self._turns.run(session, message, call, listener)

    async def _handle_once(self, key: str, message: str, call: TurnCall, listener: UpdateListener | None) -> TurnOutcome:
        """Returns the one result of an idempotency key, from an earlier turn or from a new one."""
        if call.session_id is not None:
            self._checks.nesting(call.session_id)
            await self._sessions.find(call.session_id, subject_id=call.subject_id)
        deadline = call.deadline if call.deadline is not None else anyio.current_time() + self.config.turn_deadline_s
        async with self._keys.use(key, message, deadline=deadline, call=call) as use:
            if use.result is not None:  # a copy: the original turn starts the consolidation
                return TurnOutcome(use.result)
            await self._ready()  # again: an earlier turn with the key may have run until now
            self._checks.size(message, self._ledgers.ho2m.config)
            session = await self._sessions.find_or_start(call.session_id, call.subject_id)
            use.session_id = session.session_id
            outcome = await self._turns.run(session, message, call, listener)
            use.result = outcome.result
            return outcome

    async def start_session(
        self, session_id: str | None = None, *, subject_id: str | None = None, external_id: str | None = None
    ) -> SessionId:
        """Starts a session, or returns the open session with this id. Starting a session twice has no further effect.

        Args:
            session_id: `SES-` and 8 to 32 lower-case hex digits; None: a new random id
            subject_id: the subject of the conversation; None: an anonymous subject of this session only
            external_id: the caller's own name for the session, recorded in `SESSION_START`; separate for each subject

        Raises:
            SessionEnded: a session with this id has ended
            SessionMismatch: a session with this id belongs to another subject
        """
        self._checks.start(session_id, subject_id, external_id)
        await self._ready()
        session = await self._sessions.start(session_id, subject_id=subject_id, external_id=external_id)
        self._ledgers.request_commit()
        return session.session_id

    async def find_external(self, external_id: str, *, subject_id: str | None = None) -> SessionId | None:
        """Returns the id of the subject's newest session with this external id, or None.

        Args:
            external_id: the name that was passed to `start_session`
            subject_id: the session's subject; None: a session that was started without a subject
        """
        return next(iter(await self.find_all_external(external_id, subject_id=subject_id, limit=1)), None)

    async def find_all_external(
        self, external_id: str, *, subject_id: str | None = None, limit: int = 16
    ) -> tuple[SessionId, ...]:
        """Like `find_external`, for the newest `limit` sessions, at least 1: returns their ids, oldest first."""
        self._checks.external_id(external_id, subject_id, limit)
        await self._ready()
        return await self._sessions.names.sessions(external_id, subject_id, limit)

    async def session(self, session_id: str) -> SessionManager:
        """Returns the session with its history and counters, activated from the ledger if it is passive."""
        check_session_id(session_id)
        await self._ready()
        return await self._sessions.find(session_id)

    async def end_session(self, session_id: str, *, reason: str = "ended") -> None:
        """Ends the session after the messages that are already queued. The session then takes no more turns.

        Args:
            session_id: the session to end
            reason: recorded in `SESSION_END`, never encrypted

        Raises:
            ReentrantTurn: the caller is a tool of the session's own turn
        """
        self._checks.end(session_id, reason)
        await self._ready()
        session = await self._sessions.find_open(session_id)
        async with self._admission.call(session):
            if not session.state.is_ended:
                await session.end_session(session_id, session.state.completed_turns, session.state.cost, reason)

    async def approve(
        self,
        approval_id: str,
        *,
        arguments: Mapping[str, object] | None = None,
        answer: Json = None,
        scope: ApprovalScope = "once",
        answered_by: str | None = None,
        message: str | None = None,
        listener: UpdateListener | None = None,
    ) -> TurnResult | None:
        """Allows a waiting tool call. Returns the result of the continued turn; None: other calls of the turn still wait.

        The answer is durable before the call is made. The same answer given again returns the same result.

        Args:
            approval_id: an id from `TurnResult.pending_approval`; or the id of a work order, for all its open requests
            arguments: replace the model's arguments; None: the model's
            answer: the answer to the tool's question, by its `response_schema`; None: yes
            scope: `session` also allows later calls of the tool in this session, with any arguments
            answered_by: who answered, for the record
            message: a message to the model about the answer
            listener: is awaited with each update of the continued turn; None: no updates

        Raises:
            UnknownApproval, ApprovalAnswered, ApprovalVoid, CallerError: this answer cannot be accepted
            OutcomeUnknown: the turn was cut off while the tool ran, so its effect may or may not have happened
            Overloaded, TurnTimeout, LedgerError: as for `handle_turn`; give the same answer again
        """
        given = GivenAnswer(
            decision="approved", arguments=arguments, answer=answer, scope=scope, answered_by=answered_by, message=message
        )
        return await self.answer_approval(approval_id, given, listener)

    async def deny(
        self,
        approval_id: str,
        reason: str | None = None,
        *,
        answered_by: str | None = None,
        listener: UpdateListener | None = None,
    ) -> TurnResult | None:
        """Denies a waiting tool call, like `approve`. The model reads the reason and replies."""
        given = GivenAnswer(decision="denied", message=reason, answered_by=answered_by)
        return await self.answer_approval(approval_id, given, listener)

    async def answer_approval(
        self, approval_id: str, given: GivenAnswer, listener: UpdateListener | None = None
    ) -> TurnResult | None:
        """Gives an answer, like `approve` and `deny`. The listener receives the updates of the continued turn."""
        await self._ready(listener)
        with raises_cut_off("the turn"):
            outcome = await self._approvals.answer(approval_id, given, partial(self._continue, listener=listener))
        return outcome.result if outcome is not None else None

    async def answer_client_calls(
        self, outputs: Mapping[str, ClientOutput | Json], *, listener: UpdateListener | None = None
    ) -> TurnResult | None:
        """Records the outputs of the caller's tools, and returns the result of the continued turn; None: other calls wait.

        The same outputs given again return the same result.

        Args:
            outputs: what each tool returned, or a `ClientOutput`, by ids of `TurnResult.client_calls`; all of one work order
            listener: is awaited with each update of the continued turn; None: no updates

        Raises:
            UnknownApproval, ApprovalAnswered, CallerError: there is no such call, or it does not take this output
            Overloaded, TurnTimeout, LedgerError: as for `handle_turn`; give the same outputs again
        """
        await self._ready(listener)
        with raises_cut_off("the turn"):
            outcome = await self._approvals.answer_client(outputs, partial(self._continue, listener=listener))
        return outcome.result if outcome is not None else None

    async def _continue(self, message: str, call: TurnCall, listener: UpdateListener | None) -> TurnOutcome:
        """Runs the turn that continues one whose calls waited for an answer."""
        outcome = await self.handle_call(message, call, listener)
        self._consolidations.start(outcome.gates)
        return outcome

    async def declare_intent(
        self,
        session_id: str,
        objective: str,
        *,
        scope: IntentScope = "SESSION",
        parent_intent_id: str | None = None,
        targets: Sequence[str] = (),
    ) -> IntentId:
        """Declares an intent of the session and returns its id. A second live intent competes with the first.

        Raises:
            CallerError: `context_mode` is not "enforce", or an argument is wrong
            InvalidLifecycle: the parent intent was never declared
        """
        await self._ready()
        return await self._intents.declare(session_id, objective, scope=scope, parent=parent_intent_id, targets=targets)

    async def fork_intent(
        self, session_id: str, intent_id: str, objectives: Sequence[str], *, active: int | None = None
    ) -> list[IntentId]:
        """Forks an intent into children, one for each objective, and returns their ids.

        Args:
            session_id: the session of the intent
            intent_id: the intent to fork
            objectives: one text for each child
            active: position in `objectives` of the child that becomes active; None: no child is chosen
        """
        await self._ready()
        return await self._intents.fork(session_id, intent_id, objectives, active)

    async def close_intent(self, session_id: str, intent_id: str, outcome: str) -> None:
        """Closes an intent. The model no longer sees its turns."""
        await self._ready()
        await self._intents.close(session_id, intent_id, outcome)

    async def abandon_intent(self, session_id: str, intent_id: str, reason: str) -> None:
        """Abandons an intent and records the reason."""
        await self._ready()
        await self._intents.abandon(session_id, intent_id, reason)

    async def reopen_intent(self, session_id: str, intent_id: str, reason: str) -> None:
        """Reopens an intent that was closed or superseded, together with its turns."""
        await self._ready()
        await self._intents.reopen(session_id, intent_id, reason)

    async def resolve_conflict(self, session_id: str, *, keep: str) -> None:
        """Resolves a conflict between competing intents: `keep` stays live and supersedes the others."""
        await self._ready()
        await self._intents.keep(session_id, keep)

    async def run_consolidation(
        self, signal_ids: Sequence[str], *, namespace: str | None = None, gate_ts: str | None = None
    ) -> list[WorkOrder]:
        """Consolidates the signals whose gates are open now, and returns a finished work order for each of them.

        Args:
            signal_ids: `TurnResult.consolidation_candidates`, or any signal ids
            namespace: `agent_class/subject_id`, both percent-encoded; None: the signal ids come from results and know theirs
            gate_ts: when the gates opened, ISO time with a zone; None: now

        Raises:
            CallerError: long-term memory is off, an argument is wrong, a namespace is missing or belongs to another agent class
            LedgerError: a consolidation could not be recorded
            ActorStopped: a part that the consolidation called was cancelled, but not by the caller
        """
        by_namespace = self._checks.consolidation(signal_ids, namespace)
        await self._ready()
        return await self._consolidations.run(by_namespace, gate_ts)

    async def recover(self) -> None:
        """Ends the consolidations that a crash left open, and records the sources of requests and the signer of projections.

        A runtime calls it when the ledgers are open, before the first turn. A program that builds a supervisor itself must call
        it too. Otherwise the entries to which its turns refer are missing. A second call has no further effect. A turn that a
        crash left open is not closed here, but when its session is next activated.

        Raises:
            LedgerError: a ledger could not be read or written; call it again before the first turn
        """
        await self._sources.record(self._ledgers.ho2m)
        await self._consolidations.recover()
        if self._authority is not None:
            await self._authority.declare_signer()

    async def _ready(self, listener: UpdateListener | None = None) -> None:
        """Returns when the ledgers are open. Refuses calls from elsewhere and during a shutdown, and what is no listener."""
        if listener is not None:
            self._checks.listener(listener)
        self._host.loop.check()
        if not self._host.is_open:
            await self._host.wait_open()
        if self._limiter.is_closed:
            raise RuntimeClosed("the runtime is shutting down and takes no more calls")
