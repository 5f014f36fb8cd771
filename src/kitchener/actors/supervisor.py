"""HO2: plans turns as chains of work orders and owns the sessions of one agent class. It never calls a model.

Start reading here. Each step in handling a message is one line in this file and an object in a file of its own:
`requests.py` validates the arguments, `idempotency.py` finds an earlier answer, `directory.py` finds the session,
`admission.py` decides when the turn runs, and `turn.py` runs it. Explained in `docs/turn.md`.
"""

from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

import anyio

from kitchener.actors.assembly import Host, afterwards_of, turn_memory
from kitchener.actors.attention.retriever import AttentionRetriever
from kitchener.actors.attention.templates import load_templates, resolve_template
from kitchener.actors.authority.authority import ContextAuthority
from kitchener.actors.consolidation.consolidator import Consolidator
from kitchener.actors.erasure import Leaving
from kitchener.actors.intent_calls import IntentCalls
from kitchener.actors.mailbox.calling_chain import CALLING_CHAIN, calling_chain, live_links
from kitchener.actors.policy_identity import configuration_hash, policy_identity
from kitchener.actors.sessions.admission import Admission, SessionQueue, TurnLimiter
from kitchener.actors.sessions.context_provider import SessionContext
from kitchener.actors.sessions.directory import SessionDirectory, SessionManager
from kitchener.actors.sessions.fresh_ids import check_session_id
from kitchener.actors.sessions.idempotency import IdempotencyKeys, OnSession, Scope
from kitchener.actors.sessions.item_tool import ContextItems
from kitchener.actors.sessions.requests import (
    check_chain,
    check_is_text,
    check_list,
    check_name,
    check_not_inside,
    check_size,
    check_text,
    plain_message,
    turn_call,
)
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.turn.parts import DegradedCall, Prepared, TurnParts
from kitchener.actors.turn.stream import streamed
from kitchener.actors.turn.turn import Turn
from kitchener.actors.turn_memory import LongTermMemory
from kitchener.actors.work.budget import TokenBudgeter
from kitchener.actors.work.quality import QualityGate
from kitchener.cancellation import is_own_failure, raises_cut_off
from kitchener.clock import Clock, SystemClock
from kitchener.config import HO2Config
from kitchener.errors import (
    CallerError,
    CommitUnknown,
    LedgerWriteError,
    RuntimeClosed,
    SubjectErased,
    TurnReplaced,
    TurnTimeout,
)
from kitchener.ids import IdSource, IntentId, RandomIds, SessionId, check_caller
from kitchener.ledger import LedgerGroup
from kitchener.records.turn import TurnCall, TurnCompleted, TurnResult, TurnUpdate, UpdateListener
from kitchener.records.work_order import HO1ExecutorProtocol, WorkOrder


class HO2Supervisor:
    """Runs the sessions and turns of one agent class.

    Args:
        agent_class: `ADMIN` or `RESIDENT:<name>`
        ho1_executor: runs work orders
        ledgers: the ledgers of this agent class
        token_budgeter: tracks the token budgets of sessions, turns and work orders
        config: policies and limits
        ho3_memory: long-term memory; used only if `ho3_enabled` is set
        attention: gathers context; None: from the session's own history, with the agent class's template
        degraded_call: answers when HO1 is broken; None: the turn replies with an apology
        tools: tools that the executor may run; None: no tools
        context_items: the executor's built-in tool that reads stubs in full; None: no such tool
        clock: time of day; None: the system clock
        ids: source of new session ids; None: random ids
        host: resources shared by the runtime; None: the defaults of `Host`
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
        tools: ToolRegistry | None = None,
        context_items: ContextItems | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        host: Host | None = None,
    ) -> None:
        clock, self._host = clock or SystemClock(), host or Host()
        limits = self._host.limits
        self.agent_class, self.config = agent_class, config
        self._ledgers = ledgers
        memory_config = ho3_memory.config if ho3_memory is not None and config.ho3_enabled else None
        ruleset_hash = self._host.ruleset_hash or policy_identity(config, memory_config)
        authority = None
        if config.context_mode != "off":
            authority = ContextAuthority(config, ledgers, self._host.signer, ruleset_hash=ruleset_hash)
        self._sessions = SessionDirectory(
            agent_class=agent_class,
            ledgers=ledgers,
            config=config,
            clock=clock,
            ids=ids or RandomIds(config.session_id_digits),
            max_active=limits.max_active_sessions,
            authority=authority,
            memory=ho3_memory if config.ho3_enabled else None,
        )
        if context_items is not None:
            context_items.bind(self._sessions.thread)
        if attention is None:
            template = resolve_template(load_templates(config.attention_templates), agent_class)
            attention = AttentionRetriever(SessionContext(self._sessions, config), config, template)
        self.attention = attention
        self._limiter = self._host.limiter or TurnLimiter(limits.max_running_turns, limits.max_waiting_turns)
        self._admission = Admission(config, self._limiter)
        self._keys = IdempotencyKeys(ledgers)
        self._intents = IntentCalls(self._sessions, self._admission, authority)
        self._parts = TurnParts(
            config=config,
            ledgers=ledgers,
            executor=ho1_executor,
            budgeter=token_budgeter,
            attention=attention,
            quality=QualityGate(config),
            clock=clock,
            degraded_call=degraded_call,
            listeners=self._host.listeners,
            prepared=Prepared(config, tools or ToolRegistry(), configuration_hash(config, memory_config), ruleset_hash),
            authority=authority,
            memory=turn_memory(agent_class, config, ledgers, ho3_memory),
        )
        self._consolidator = (
            Consolidator(agent_class, self._parts, ho3_memory, limits.abort_grace_s)
            if ho3_memory is not None and config.ho3_enabled
            else None
        )
        self._afterwards = afterwards_of(config, self._host)
        self.leaving = Leaving(self._sessions, self._admission, self._consolidator, authority, self._host.limits)
        """Stops and evicts a subject's sessions for an erasure. The runtime calls it."""

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
        if session_id is not None:
            check_session_id(session_id)
        if subject_id is not None:
            check_is_text("subject_id", subject_id)
            check_caller(subject_id, session_id)
        if external_id is not None:
            check_name("external_id", external_id)
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
        check_name("external_id", external_id)
        if subject_id is not None:
            check_name("subject_id", subject_id)
        await self._ready()
        return await self._sessions.by_external_id(external_id, subject_id)

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
        check_session_id(session_id)
        check_text("reason", reason)
        check_not_inside(calling_chain(), session_id, "ends it")
        await self._ready()
        session = await self._sessions.find_open(session_id)
        async with self._admission.call(session):
            if not session.state.is_ended:
                await session.end_session(session_id, session.state.completed_turns, session.state.cost, reason)

    async def handle_turn(
        self,
        message: str,
        *,
        session_id: str | None = None,
        subject_id: str | None = None,
        idempotency_key: str | None = None,
        memory: bool = True,
        deadline: float | None = None,
    ) -> TurnResult:
        """Returns the reply to a message after its record is durable.

        Cancelling this call cancels the turn, its work order and its model call. The session stays usable.

        Args:
            message: text; other content is not supported
            session_id: the session; None: starts a new session
            subject_id: the subject of the conversation; must match the session's subject
            idempotency_key: a message sent again with the same key runs one turn only, also after a restart
            memory: False: this turn neither reads nor writes long-term memory
            deadline: seconds from now for the whole call, including time in queues; None: `turn_deadline_s` from its start

        Raises:
            CallerError: an argument is wrong (its subclasses say why); nothing was started
            Overloaded: the turn could not start before the admission deadline; nothing was started
            TurnTimeout, TurnReplaced: the turn was aborted
            LedgerError: the turn's record could not be made durable
            ActorStopped: a part that the turn called was cancelled, but not by the caller
        """
        with raises_cut_off("the turn"):
            result = await self._handle(message, turn_call(session_id, subject_id, idempotency_key, memory, deadline), None)
        self._consolidate_after(result)
        return result

    async def run_consolidation(
        self, signal_ids: Sequence[str], *, namespace: str, gate_ts: str | None = None
    ) -> list[WorkOrder]:
        """Consolidates the signals whose gates are open now, and returns one finished work order for each of them.

        A signal whose gate is closed gives no work order.

        Args:
            signal_ids: candidates, such as `TurnResult.consolidation_candidates`
            namespace: the memory namespace: `agent_class/subject_id`, both percent-encoded
            gate_ts: when the gates opened, ISO time with a zone; None: now

        Raises:
            CallerError: long-term memory is off, an argument is wrong, or the namespace belongs to another agent class
            LedgerError: a consolidation could not be recorded
            ActorStopped: a part that the consolidation called was cancelled, but not by the caller
        """
        check_list("signal_ids", signal_ids)
        check_is_text("namespace", namespace)
        await self._ready()
        if self._consolidator is None:
            raise CallerError(f"agent class {self.agent_class!r} has no long-term memory; set ho3_enabled")
        with raises_cut_off("the consolidation"):
            return await self._consolidator.run(signal_ids, namespace=namespace, gate_ts=gate_ts)

    async def recover(self) -> None:
        """Ends the consolidations that a crash left open. A runtime calls this before its first turn.

        A turn that a crash left open is closed when its session is next activated.
        """
        if self._consolidator is not None:
            await self._consolidator.recover()

    async def declare_intent(
        self,
        session_id: str,
        objective: str,
        *,
        scope: str = "SESSION",
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

    async def stream_turn(
        self,
        message: str,
        *,
        session_id: str | None = None,
        subject_id: str | None = None,
        idempotency_key: str | None = None,
        memory: bool = True,
        deadline: float | None = None,
    ) -> AsyncIterator[TurnUpdate]:
        """Runs a turn like `handle_turn` and yields its updates; the last one is `TurnCompleted`.

        The arguments and errors are those of `handle_turn`. Leaving the iterator cancels the turn. Text is provisional until
        the turn completes: `TextRetracted` withdraws the text of a failed attempt.
        """
        if self._host.tasks is None:
            raise CallerError("stream_turn needs a runtime (open_runtime); a supervisor assembled by hand has handle_turn")
        call = turn_call(session_id, subject_id, idempotency_key, memory, deadline)

        async def run(tell: UpdateListener) -> None:
            result = await self._handle(message, call, tell)
            await tell(TurnCompleted(result))
            self._consolidate_after(result)

        async with aclosing(streamed(run, self._host.tasks, self._host.limits.stream_buffer)) as updates:
            async for update in updates:
                yield update

    def _handle(self, message: str, call: TurnCall, update: UpdateListener | None) -> Coroutine[Any, Any, TurnResult]:
        message = plain_message(message, self._host.limits.max_message_chars)
        key = call.idempotency_key
        return self._admitted(message, call, update) if key is None else self._once(key, message, call, update)

    async def _once(self, key: str, message: str, call: TurnCall, update: UpdateListener | None) -> TurnResult:
        """Returns the single result of an idempotency key, from an earlier turn or from a new one."""
        await self._ready()
        return await self._keys.answer(
            key,
            message,
            scope=await self._scope(call),
            deadline=call.deadline if call.deadline is not None else anyio.current_time() + self.config.turn_deadline_s,
            run=partial(self._admitted, message, call, update),
        )

    async def _admitted(
        self, message: str, call: TurnCall, update: UpdateListener | None, on_session: OnSession | None = None
    ) -> TurnResult:
        """Waits in the session's queue and for the runtime's limit, then runs the turn."""
        await self._ready()
        check_size(message, self._ledgers.ho2m.config)
        if call.session_id is None:
            session = await self._sessions.start(subject_id=call.subject_id)
        else:
            session = await self._sessions.find_open(call.session_id, subject_id=call.subject_id)
        links = live_links()
        if links:
            check_chain(calling_chain(), session.session_id, self._host.limits.max_nesting)
        if on_session is not None:
            on_session(session.session_id)
        token = CALLING_CHAIN.set((*links, session.session_id))
        try:
            queue = await self._admission.enter(session, message, call, nested=bool(links))
            try:
                session.check_open()  # an earlier call in the session's queue may have ended the session
                self._sessions.check(session.subject_id)
                return await self._run(session, queue, message, call, update)
            finally:
                self._admission.leave(session, nested=bool(links))
        finally:
            CALLING_CHAIN.reset(token)

    async def _run(
        self, session: SessionManager, queue: SessionQueue, message: str, call: TurnCall, update: UpdateListener | None
    ) -> TurnResult:
        """Runs the turn under its deadline. The record ends with `TURN_COMPLETED` or `TURN_ABORTED`."""
        started = self._parts.loop_time()
        deadline = call.deadline if call.deadline is not None else started + self.config.turn_deadline_s
        turn = Turn(self._parts, session, message, deadline, update)
        queue.scope = scope = self._parts.scope(deadline=deadline)
        self._ledgers.enter_turn()
        self._limiter.track(scope)
        result: TurnResult | None = None
        try:
            with scope:
                await turn.start(call)
                result = await turn.run()
                await self._ledgers.commit()
                return result
        except BaseException as error:
            await self._abort(turn, "crash" if is_own_failure(error) else self._cancel_reason())
            raise
        finally:
            self._limiter.untrack(scope)
            self._ledgers.leave_turn()
        if result is not None:
            return await self._commit_late(result)
        raise await self._cut_off(session, turn, queue, deadline - started)

    def _consolidate_after(self, result: TurnResult) -> None:
        """Starts the consolidation of the turn's open gates in a background task, after the reply was delivered."""
        if result.consolidation_candidates and self._afterwards is not None and self._consolidator is not None:
            crossed = self._parts.take_crossed(result.turn_id)
            if crossed is not None:  # None: the reply is a copy, and the original turn started the consolidation
                work = partial(self._consolidator.run, result.consolidation_candidates, is_asked_for=False)
                self._afterwards.start(partial(work, namespace=crossed.namespace, gate_ts=crossed.gate_ts))

    async def _commit_late(self, result: TurnResult) -> TurnResult:
        """Returns the result once the commit is durable. A completed turn is never aborted, even if its wait was cut off.

        Raises:
            CommitUnknown: the commit took longer than `abort_grace_s`
        """
        with anyio.move_on_after(self._host.limits.abort_grace_s, shield=True):
            await self._ledgers.commit()
            return result
        raise CommitUnknown(result.turn_id)

    async def _cut_off(self, session: SessionManager, turn: Turn, queue: SessionQueue, seconds: float) -> Exception:
        """Aborts a turn whose scope was cancelled, and returns the error for its caller.

        The cause is an erasure, a newer message, a shutdown, or the turn's deadline.
        """
        if session.subject_id in self._sessions.barred:
            await self._abort(turn, "cancelled")
            return SubjectErased(session.subject_id)
        if queue.is_replaced:
            await self._abort(turn, "cancelled")
            return TurnReplaced(turn.session_id)
        if self._limiter.is_closed:
            await self._abort(turn, "shutdown")
            return RuntimeClosed(f"turn {turn.turn_id} was aborted: the runtime is shutting down")
        await self._abort(turn, "timeout")
        return TurnTimeout(turn.turn_id, seconds)

    async def _abort(self, turn: Turn, reason: str) -> None:
        """Records the abort. A cancellation waits for this clean-up alone, for at most `abort_grace_s`."""
        with anyio.CancelScope(deadline=anyio.current_time() + self._host.limits.abort_grace_s, shield=True):
            with suppress(LedgerWriteError):  # the caller already gets the error that caused the abort
                await turn.abort(reason)

    def _cancel_reason(self) -> str:
        return "shutdown" if self._limiter.is_closed else "cancelled"

    async def _ready(self) -> None:
        if self._host.ready is not None:
            await self._host.ready()
        if self._limiter.is_closed:
            raise RuntimeClosed("the runtime is shutting down and takes no more calls")

    async def _scope(self, call: TurnCall) -> Scope:
        if call.session_id is not None:
            check_chain(calling_chain(), call.session_id, self._host.limits.max_nesting)
            session = await self._sessions.find(call.session_id, subject_id=call.subject_id)
            return ("session", session.session_id)
        if call.subject_id is None:
            raise CallerError("an idempotency_key needs a session_id or a subject_id: it belongs to one of them")
        return ("subject", call.subject_id)
