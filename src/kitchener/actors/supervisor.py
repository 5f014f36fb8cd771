"""HO2: plans turns as chains of work orders and owns the sessions of one agent class. It never calls a model.

This is the page a reader starts from. Each step of a message's way is one line here and an object in a file of its own:
`requests.py` (can it be right?), `idempotency.py` (has this been answered?), `directory.py` (whose conversation is it?),
`admission.py` (may it run now?), `turn.py` (what happens in it). Explained in `docs/turn.md`.
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
from kitchener.ledger import Ledgers
from kitchener.records.turn import TurnCall, TurnCompleted, TurnResult, TurnUpdate, UpdateListener
from kitchener.records.work_order import HO1ExecutorProtocol, WorkOrder


class HO2Supervisor:
    """One agent class: its sessions, its turns.

    Args:
        agent_class: `ADMIN` or `RESIDENT:<name>`
        ho1_executor: runs work orders
        ledgers: the agent class's own
        token_budgeter: keeps the books of sessions, turns and work orders
        config: policies and bounds
        ho3_memory: long-term memory; used only where `ho3_enabled` is set
        attention: gathers context; None: from the session's own history, by the template that serves the class
        degraded_call: answers when HO1 is broken; None: the turn says that it could not
        tools: what the executor may run; None: nothing
        context_items: its built-in tool that reads what the context shows as stubs; None: there is none
        clock: time of day
        ids: fresh session ids
        host: what the runtime lends
    """

    def __init__(  # noqa: PLR0913  assembled in one place by the runtime, by hand in tests; all by keyword
        self,
        *,
        agent_class: str,
        ho1_executor: HO1ExecutorProtocol,
        ledgers: Ledgers,
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
        """Lets go of a subject who is erased; for the runtime."""

    async def start_session(
        self, session_id: str | None = None, *, subject_id: str | None = None, external_id: str | None = None
    ) -> SessionId:
        """A session that takes turns: a new one, or the open one of this id. Started twice is started once.

        Args:
            session_id: `SES-` and 8 to 32 lower-case hex digits; None draws a fresh one
            subject_id: whose conversation; None: an anonymous subject of this session alone
            external_id: a name of the caller's own, kept on `SESSION_START`; subjects do not share theirs

        Raises:
            SessionEnded, SessionMismatch: the id is taken
        """
        if session_id is not None:
            check_session_id(session_id)
        if subject_id is not None:
            check_caller(subject_id, session_id)
        if external_id is not None:
            check_name("external_id", external_id)
        await self._ready()
        session = await self._sessions.start(session_id, subject_id=subject_id, external_id=external_id)
        self._ledgers.request_commit()
        return session.session_id

    async def find_external(self, external_id: str, *, subject_id: str | None = None) -> SessionId | None:
        """The newest session that this subject started with this external id, or None.

        Args:
            external_id: the name that was given to `start_session`
            subject_id: whose session; None: one that was started without a subject
        """
        check_name("external_id", external_id)
        await self._ready()
        return await self._sessions.by_external_id(external_id, subject_id)

    async def session(self, session_id: str) -> SessionManager:
        """The session with its history and counters; brought back from the ledger if need be."""
        check_session_id(session_id)
        await self._ready()
        return await self._sessions.find(session_id)

    async def end_session(self, session_id: str, *, reason: str = "ended") -> None:
        """Ends the session after the messages that already wait for it; it takes no more turns. The reason is kept plainly.

        Raises:
            ReentrantTurn: a tool of the session's own turn asks for it
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
        """The reply to a message, on record and durable.

        Cancelling this call cancels the turn, its work order and its model call; the session stays usable.

        Args:
            message: text; what else a user may send is not part of this version
            session_id: which conversation; None starts one
            subject_id: whose; must fit the session's
            idempotency_key: the same key with the same message has one turn, also after a restart
            memory: False: this turn neither reads nor writes long-term memory
            deadline: seconds from now for the whole call, waiting included; None: `turn_deadline_s` once it runs

        Raises:
            CallerError: the call cannot be right (its subclasses say why); nothing was started
            Overloaded: it could not run before the admission deadline; nothing was started
            TurnTimeout, TurnReplaced: it was aborted
            LedgerError: its record could not be made durable
            ActorStopped: something that it called was cancelled, and not by you
        """
        with raises_cut_off("the turn"):
            result = await self._handle(message, turn_call(session_id, subject_id, idempotency_key, memory, deadline), None)
        self._consolidate_after(result)
        return result

    async def run_consolidation(
        self, signal_ids: Sequence[str], *, namespace: str, gate_ts: str | None = None
    ) -> list[WorkOrder]:
        """Learns from signals whose gates are open as of now: one work order each, in its last state; the others give none.

        Args:
            signal_ids: candidates, such as `TurnResult.consolidation_candidates`
            namespace: whose: `agent_class/subject_id`, both percent-encoded
            gate_ts: when their gates opened, ISO time with a zone; None: now

        Raises:
            CallerError: long-term memory is off, the namespace is another agent class's, or the time has no zone
            LedgerError: what was learned could not be recorded
            ActorStopped: something that it called was cancelled, and not by you
        """
        await self._ready()
        if self._consolidator is None:
            raise CallerError(f"agent class {self.agent_class!r} has no long-term memory; set ho3_enabled")
        with raises_cut_off("the consolidation"):
            return await self._consolidator.run(signal_ids, namespace=namespace, gate_ts=gate_ts)

    async def recover(self) -> None:
        """Ends what a crash left open and no session comes back to: consolidations. A runtime calls it before its first turn.

        What was open in a session is closed when the session is next used.
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
        """Declares what the session is about, and returns the intent's id. A second live one competes with the first.

        Raises:
            CallerError: the Context Authority does not decide here, or an argument is wrong
            InvalidLifecycle: the parent is unknown
        """
        await self._ready()
        return await self._intents.declare(session_id, objective, scope=scope, parent=parent_intent_id, targets=targets)

    async def fork_intent(
        self, session_id: str, intent_id: str, objectives: Sequence[str], *, active: int | None = None
    ) -> list[IntentId]:
        """Lets an intent go on in children, one for each objective; `active` is the position of the one that goes on first."""
        await self._ready()
        return await self._intents.fork(session_id, intent_id, objectives, active)

    async def close_intent(self, session_id: str, intent_id: str, outcome: str) -> None:
        """Closes an intent; its turns are no longer shown."""
        await self._ready()
        await self._intents.close(session_id, intent_id, outcome)

    async def abandon_intent(self, session_id: str, intent_id: str, reason: str) -> None:
        """Gives an intent up."""
        await self._ready()
        await self._intents.abandon(session_id, intent_id, reason)

    async def reopen_intent(self, session_id: str, intent_id: str, reason: str) -> None:
        """Brings an intent back that was closed or gave way to another, with its turns."""
        await self._ready()
        await self._intents.reopen(session_id, intent_id, reason)

    async def resolve_conflict(self, session_id: str, *, keep: str) -> None:
        """Settles which of several competing intents goes on; the others give way to it."""
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
        """The same turn, told as it happens; the last update is `TurnCompleted`. Leaving the iterator cancels the turn.

        Text is provisional until the turn completes: `TextRetracted` takes back what a failed attempt had said.
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
        """The key's one result: of an earlier turn, or of this one."""
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
        """Through the session's queue and the runtime's limit, then the turn."""
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
                session.check_open()  # a call that was before this message in the session's queue may have ended it
                self._sessions.check(session.subject_id)
                return await self._run(session, queue, message, call, update)
            finally:
                self._admission.leave(session, nested=bool(links))
        finally:
            CALLING_CHAIN.reset(token)

    async def _run(
        self, session: SessionManager, queue: SessionQueue, message: str, call: TurnCall, update: UpdateListener | None
    ) -> TurnResult:
        """The turn under its deadline: recorded from `TURN_STARTED` to `TURN_COMPLETED`, or closed with `TURN_ABORTED`."""
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
        """The reply is delivered: whatever its turn found ripe is learned now, by a task that nobody waits for."""
        if result.consolidation_candidates and self._afterwards is not None and self._consolidator is not None:
            crossed = self._parts.take_crossed(result.turn_id)
            if crossed is not None:  # else this reply is a copy, and the turn itself saw to it
                work = partial(self._consolidator.run, result.consolidation_candidates, is_asked_for=False)
                self._afterwards.start(partial(work, namespace=crossed.namespace, gate_ts=crossed.gate_ts))

    async def _commit_late(self, result: TurnResult) -> TurnResult:
        """A complete turn is never aborted: whatever cut off the wait for its commit, the commit is waited for."""
        with anyio.move_on_after(self._host.limits.abort_grace_s, shield=True):
            await self._ledgers.commit()
            return result
        raise CommitUnknown(result.turn_id)

    async def _cut_off(self, session: SessionManager, turn: Turn, queue: SessionQueue, seconds: float) -> Exception:
        """Closes a turn whose scope was cancelled: by an erasure, a newer message, a shutdown, or its deadline."""
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
        """The one clean-up that a cancellation waits for, and it is bounded."""
        with anyio.CancelScope(deadline=anyio.current_time() + self._host.limits.abort_grace_s, shield=True):
            with suppress(LedgerWriteError):  # the failure that is on its way to the caller already says so
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
