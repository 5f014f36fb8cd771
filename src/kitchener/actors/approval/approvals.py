"""Records answers to waiting tool calls, and continues the turn once all calls of a work order have an answer.

`actors/supervisor.py` calls it. An answer is durable before anything runs. The continued turn has an idempotency
key, so an answer given again finds the finished turn. Explained in `docs/approval.md`.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple, Protocol, TypeVar

from kitchener.actors.admission.admission import Admission
from kitchener.actors.admission.argument_checks import check_is_text, check_not_inside
from kitchener.actors.admission.idempotency import APPROVAL_KEY
from kitchener.actors.approval.given_answer import GivenAnswer, given_output, work_order_of
from kitchener.actors.approval.resumption import AnsweredRequest, read_answered_requests
from kitchener.actors.approval.wording import resumed_message
from kitchener.actors.sessions.active_session import SessionManager
from kitchener.actors.sessions.directory import SessionDirectory
from kitchener.actors.sessions.pending_approvals import DeferredWork, WaitingRequest, due
from kitchener.actors.sources import read_client_tools, read_source
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.canonical import canonical_digest
from kitchener.errors import ApprovalAnswered, ApprovalVoid, CallerError, OutcomeUnknown, UnknownApproval
from kitchener.ids import split_approval_id
from kitchener.ledger import LedgerGroup
from kitchener.plain_names import quoted
from kitchener.records import events
from kitchener.records.entries import (
    AbandonReason,
    ApprovalRequestedPayload,
    ApprovalResolvedPayload,
    Json,
    ResumesMapping,
    TurnStartedPayload,
    WorkOrderAbandonedPayload,
    opened,
    payload_as,
)
from kitchener.records.index_keys import idempotency_index_key, turn_index_key
from kitchener.records.output_schema import OutputSchema
from kitchener.records.tools.client_tools import ClientOutput
from kitchener.records.turn import TurnCall, TurnResult
from kitchener.schemas.compiled_schemas import stranger_schema


class HasResult(Protocol):
    """The outcome of a turn. A protocol, because the package of turns imports this one."""

    @property
    def result(self) -> TurnResult:
        """The result of the turn."""
        ...


Ran = TypeVar("Ran", bound=HasResult)
HandleMessage = Callable[[str, TurnCall], Awaitable[Ran]]
"""Runs the turn of a message."""


class Chosen(NamedTuple):
    """A request, and the answer that is given to it now."""

    found: AnsweredRequest
    given: GivenAnswer


class Approvals:
    """The answers to waiting tool calls of one agent class.

    Args:
        sessions: finds the session of a request
        admission: an answer waits for its session like a turn
        ledgers: the ledgers of the agent class
        tools: the present tools; an answer about another definition of a tool is void
        is_recording: False: a replay, which reads recorded expiries
    """

    def __init__(
        self,
        sessions: SessionDirectory,
        admission: Admission,
        ledgers: LedgerGroup,
        tools: ToolRegistry,
        *,
        is_recording: bool,
    ) -> None:
        self._sessions, self._admission, self._ledgers = sessions, admission, ledgers
        self._tools, self._is_recording = tools, is_recording

    async def answer(self, approval_id: str, given: GivenAnswer, handle: HandleMessage[Ran]) -> Ran | None:
        """Records an answer, and runs the continued turn if no request of the work order is still open.

        Args:
            approval_id: the request; or its work order, for all its open requests
            given: the answer
            handle: runs the turn

        Raises:
            UnknownApproval: there is no such request
            ApprovalAnswered: it has another answer, or has expired
            ApprovalVoid: the tool has changed since the request
            OutcomeUnknown: the continued turn was cut off while a tool with effects ran
        """
        check_is_text("approval_id", approval_id)
        session_id, wo_id, wanted = split_approval_id(approval_id)
        given.check()

        def choose(requests: list[AnsweredRequest]) -> list[Chosen]:
            chosen = [Chosen(each, given) for each in requests if wanted in (None, each.request["approval_id"])]
            if not chosen:
                raise UnknownApproval(approval_id)
            by_person = [each for each in chosen if each.found.request["reason"] != "client_tool"]
            if not by_person:
                raise CallerError(
                    f"{approval_id!r} is a call of client tool {chosen[0].found.request['tool']!r}, which nobody approves: its"
                    " client runs it and gives the output (answer_client_calls)"
                )
            return by_person

        return await self._take(session_id, wo_id, choose, handle)

    async def answer_client(self, outputs: Mapping[str, ClientOutput | Json], handle: HandleMessage[Ran]) -> Ran | None:
        """Records the outputs of a client's calls, and continues the turn if no call of the work order is open.

        Args:
            outputs: by the ids of the calls, all of one work order
            handle: runs the turn

        Raises:
            UnknownApproval: there is no such call
            ApprovalAnswered: a call has another output, or has expired
            CallerError: an output cannot be recorded, or a request waits for a person
        """
        session_id, wo_id = work_order_of(outputs)
        given = {call_id: given_output(call_id, each) for call_id, each in outputs.items()}

        def choose(requests: list[AnsweredRequest]) -> list[Chosen]:
            known = {each.request["approval_id"]: each for each in requests}
            for call_id in given:
                if call_id not in known:
                    raise UnknownApproval(call_id, of_client=True)
                if known[call_id].request["reason"] != "client_tool":
                    raise CallerError(f"{call_id!r} waits for a person: approve or deny it; it is no call of a client's tool")
            return [Chosen(known[call_id], self._within_limit(known[call_id].request, each)) for call_id, each in given.items()]

        return await self._take(session_id, wo_id, choose, handle)

    async def _take(
        self, session_id: str, wo_id: str, choose: Callable[[list[AnsweredRequest]], list[Chosen]], handle: HandleMessage[Ran]
    ) -> Ran | None:
        """Records answers to requests of one work order.

        Args:
            session_id: the session
            wo_id: the work order
            choose: gives each chosen request its answer; raises CallerError if one cannot have it
            handle: runs the continued turn
        """
        check_not_inside(session_id, "answers its request")
        await self._tools.ready()  # a request may be the first use of a server since the process began
        session = await self._sessions.find_open(session_id)
        changed: list[str] = []
        async with self._admission.call(session):
            await self.expire(session)
            work = session.state.approvals.deferred.get(wo_id) if session.state.approvals is not None else None
            requests = await read_answered_requests(self._ledgers, session_id, wo_id)
            chosen = choose(requests)
            _check_readable(chosen[0].found.request)
            if work is None:
                return await self._again(session, wo_id, chosen, handle)
            changed = await self._settle(session, work, chosen)
            if work.open:
                if changed:
                    raise ApprovalVoid(changed[0], work.requests[changed[0]].tool_id)
                return None
        outcome = await self._resume(session, wo_id, work, handle)
        if changed:
            raise ApprovalVoid(changed[0], work.requests[changed[0]].tool_id, outcome.result)
        return outcome

    async def expire(self, session: SessionManager) -> None:
        """Records which requests of a session have waited for too long. The caller holds the session.

        When the last open request of a work order expires, the work order is abandoned, even if other requests were approved.
        """
        approvals = session.state.approvals
        if approvals is None or not self._is_recording:
            return
        now, written = session.now(), False
        for wo_id, work in [*approvals.deferred.items()]:
            late = due(work.open, now)
            for each in late:
                await self._resolve(session, _ended(each, wo_id, "expired"))
                written = True
            if late and not work.open:
                await self._abandon(session, wo_id, "expired")
        if written:
            await session.commit()

    async def _settle(self, session: SessionManager, work: DeferredWork, chosen: list[Chosen]) -> list[str]:
        """Records the answers to the chosen requests. Returns the requests that are void because their tools have changed."""
        changed = [each.request["approval_id"] for each, given in chosen if _is_void(each, given)]
        has_open = any(each.resolved is None for each, _ in chosen)
        for each, given in chosen:
            if each.resolved is None:
                self._check(each.request, given)
            elif given.is_of_client or (not has_open and not _is_void(each, given)):
                _check_same(each, given)  # a cut-off turn continues only with the same answers
        for each, given in chosen:
            if each.resolved is not None:
                continue
            request = each.request
            approval_id, waiting = request["approval_id"], work.requests[request["approval_id"]]
            if given.decision == "approved" and not self._is_as_asked(waiting):
                changed.append(approval_id)
                await self._resolve(session, _ended(waiting, request["wo_id"], "cancelled"))
            else:
                await self._resolve(session, given.payload(approval_id, request["wo_id"]))
        await session.commit()
        return changed

    async def _resume(self, session: SessionManager, wo_id: str, work: DeferredWork, handle: HandleMessage[Ran]) -> Ran:
        """Runs the continued turn, or finds its result."""
        requests = await read_answered_requests(self._ledgers, session.session_id, wo_id)
        answered = [(each.request, each.answer) for each in requests if each.answer is not None]
        resumes: ResumesMapping = {
            "wo_id": wo_id,
            "turn_id": work.turn_id,
            "approval_ids": list(work.requests),
            "loop": list(work.loop),
        }
        void = [
            each.approval_id for each in work.requests.values() if each.decision == "approved" and not self._is_as_asked(each)
        ]
        if void:
            resumes["void"] = void
        message = resumed_message(work.asked_for, answered)
        starts = await self._ledgers.ho2m.last(key=turn_index_key(work.turn_id))
        asked = payload_as(TurnStartedPayload, starts[-1].payload)
        if "after_untrusted" in asked or "after_untrusted" in asked.get("resumes", ()):
            resumes["after_untrusted"] = True
        call = await self._call(session.session_id, wo_id, asked, resumes)
        try:
            return await handle(message, call)
        except OutcomeUnknown:
            async with self._admission.call(session):
                if session.state.approvals is not None and wo_id in session.state.approvals.deferred:
                    await self._abandon(session, wo_id, "unknown")
                    await session.commit()
            raise

    async def _again(
        self,
        session: SessionManager,
        wo_id: str,
        chosen: list[Chosen],
        handle: HandleMessage[Ran],
    ) -> Ran:
        """Returns the result of the continued turn, for answers that were given before."""
        for each, given in chosen:
            _check_same(each, given)
        key = idempotency_index_key("session", session.session_id, f"{APPROVAL_KEY}{wo_id}")
        starts = await self._ledgers.ho2m.last(key=key)
        if not starts:  # its turn was cut off, or it expired before
            first = chosen[0].found.request
            void = "void: its turn was cut off, or another request expired"
            raise ApprovalAnswered(first["approval_id"], void, of_client=first["reason"] == "client_tool")
        started = payload_as(TurnStartedPayload, starts[-1].payload)
        call = await self._call(session.session_id, wo_id, started, started.get("resumes"))
        return await handle(opened(started["user_message"]) or "", call)

    async def _call(self, session_id: str, wo_id: str, asked: TurnStartedPayload, resumes: ResumesMapping | None) -> TurnCall:
        """The options of the continued turn, taken from the message that it answers.

        Args:
            session_id: the session
            wo_id: the deferred work order
            asked: the `TURN_STARTED` that has the options
            resumes: the deferred work that the turn continues
        """
        wanted, output = asked.get("output_schema"), None
        if wanted is not None:
            source = await read_source(self._ledgers.ho2m, "output_schema", wanted)
            output = OutputSchema.from_text(source.text, name=source.name) if source is not None else None
        tools_hash = asked.get("client_tools")
        client_tools = await read_client_tools(self._ledgers.ho2m, tools_hash) if tools_hash is not None else None
        return TurnCall(
            session_id=session_id,
            idempotency_key=f"{APPROVAL_KEY}{wo_id}",
            memory=asked["memory"],
            acceptance=tuple(opened(asked.get("acceptance", ())) or ()),
            output=output,
            resumes=resumes,
            client_tools=client_tools,
        )

    def _check(self, request: ApprovalRequestedPayload, given: GivenAnswer) -> None:
        """Raises CallerError unless the answer fits the request."""
        if given.decision != "approved":
            return
        if self._tools.identity(request["tool"]) is None:
            raise CallerError(
                f"tool {request['tool']!r} is not known to this process; answer where the program runs that has it"
                " (of an MCP server: when it is connected), or deny"
            )
        if given.arguments is not None:
            if request["reason"] != "tool_call":
                raise CallerError("arguments: the tool has asked a question about this call; answer it, or deny the call")
            bound = self._tools.validate(request["tool"], given.arguments)
            if isinstance(bound, str):
                raise CallerError(f"arguments: {bound}")
        schema = opened(request.get("response_schema"))
        if given.answer is not None and request["reason"] == "tool_call":
            raise CallerError(f"answer: {request['tool']!r} asks no question; approve or deny the call")
        if schema is not None:
            problem = _answer_problem(schema, given.answer)
            if problem is not None and given.answer is None:
                wanted = f"`kitchener approval show {request['approval_id']}` says which is wanted"
                raise CallerError(f"answer: the tool asks a question, so give an answer, or deny the call; {wanted}")
            if problem is not None:
                raise CallerError(f"answer = {quoted(given.answer)}: {problem}")

    def _within_limit(self, request: ApprovalRequestedPayload, given: GivenAnswer) -> GivenAnswer:
        """The output of a client's call, cut like the result of any tool; raises CallerError if it has no JSON form."""
        if given.decision == "failed":
            return given
        outcome = self._tools.client_outcome(request["tool"], given.answer)
        if outcome.error is not None:
            raise CallerError(f"the output of client call {request['approval_id']!r}: {outcome.error}")
        return replace(given, answer=outcome.result)

    def _is_as_asked(self, waiting: WaitingRequest) -> bool:
        """Whether the tool's definition is the one that the person was asked about."""
        found = self._tools.identity(waiting.tool_id)
        return found is not None and found.definition_hash == waiting.tool_hash

    async def _resolve(self, session: SessionManager, payload: ApprovalResolvedPayload) -> None:
        await session.write(events.APPROVAL_RESOLVED, payload["approval_id"], payload)

    async def _abandon(self, session: SessionManager, wo_id: str, reason: AbandonReason) -> None:
        abandoned: WorkOrderAbandonedPayload = {"wo_id": wo_id, "reason": reason}
        await session.write(events.WO_ABANDONED, wo_id, abandoned)


def _answer_problem(schema: Mapping[str, object], answer: Json) -> str | None:
    """Returns how an answer violates the schema of a question, or None. Takes bounded time."""
    try:
        return stranger_schema(schema, canonical_digest(schema, at="response_schema")).problem(answer)
    except ValueError as error:
        return f"the schema of the question cannot be used, so only a denial is possible: {error}"


def _ended(waiting: WaitingRequest, wo_id: str, decision: Literal["expired", "cancelled"]) -> ApprovalResolvedPayload:
    return {"approval_id": waiting.approval_id, "wo_id": wo_id, "decision": decision, "scope": "once"}


def _check_readable(request: ApprovalRequestedPayload) -> None:
    """Raises CallerError if the request cannot be read, because then its call could not be made."""
    if opened(request["arguments"]) is None:
        raise CallerError(
            f"approval {request['approval_id']!r}: what it asks for cannot be read, because the key of its subject is not here;"
            " restore the key, or import the session with it. Nothing was recorded"
        )


def _is_void(each: AnsweredRequest, given: GivenAnswer) -> bool:
    """Whether this approval was given before and was void then, because the tool had changed."""
    return given.decision == "approved" and each.resolved is not None and each.resolved["decision"] == "cancelled"


def _check_same(each: AnsweredRequest, given: GivenAnswer) -> None:
    """Raises ApprovalAnswered unless the request has this answer."""
    if each.resolved is None or not given.is_same(each.resolved):
        decision = each.resolved["decision"] if each.resolved is not None else "void: its turn was cut off"
        raise ApprovalAnswered(each.request["approval_id"], decision, of_client=each.request["reason"] == "client_tool")
