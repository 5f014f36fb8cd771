"""Reads the tool calls that wait for a person, and the answers to earlier ones, from a ledger."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from kitchener.ledger import ReadableLedger, StoredEntry
from kitchener.records import events
from kitchener.records.entries import (
    ApprovalDecision,
    ApprovalReason,
    ApprovalRequestedPayload,
    ApprovalResolvedPayload,
    WorkOrderAbandonedPayload,
    opened,
    payload_as,
)
from kitchener.records.index_keys import APPROVALS_KEY
from kitchener.runtime.root_layout import class_of_ledger

ApprovalStatus = Literal["waiting", "answered", "void", ApprovalDecision]


@dataclass(frozen=True, slots=True)
class ApprovalInfo:
    """A request for approval on record, and its answer. `HO2Supervisor.approve` and `deny` answer it."""

    agent_class: str
    """The agent class whose call waits, and whose supervisor takes the answer."""
    session_id: str
    requested_at: str
    """When it was asked, ISO time."""
    request: ApprovalRequestedPayload
    resolved: ApprovalResolvedPayload | None
    """The answer; None: the request is open."""
    resolved_at: str | None
    abandoned: str | None
    """Why its work order was abandoned; None: it was not."""
    is_over: bool
    """Whether its session has ended, so that no answer is accepted."""
    now: str
    """The time of the query, ISO."""

    @property
    def approval_id(self) -> str:
        """The id with which the request is answered."""
        return self.request["approval_id"]

    @property
    def turn_id(self) -> str:
        """Id of the turn that asked."""
        return self.request.get("turn_id", "")

    @property
    def subject_id(self) -> str:
        """The subject of the session."""
        return self.request.get("subject_id", "")

    @property
    def tool_id(self) -> str:
        """Id of the tool that would run."""
        return self.request["tool"]

    @property
    def arguments(self) -> Mapping[str, object] | None:
        """The model's arguments; None: they were erased, or the key is missing."""
        return opened(self.request["arguments"])

    @property
    def reason(self) -> ApprovalReason:
        """Why it waits: a policy asks before the call (`tool_call`), the tool asks a question, or the client runs it
        (`client_tool`)."""
        return self.request["reason"]

    @property
    def message(self) -> str | None:
        """The tool's own question; None: it has none, or it cannot be read."""
        return opened(self.request.get("message"))

    @property
    def response_schema(self) -> Mapping[str, object] | None:
        """JSON schema of the answer that the tool wants; None: it wants none."""
        return opened(self.request.get("response_schema"))

    @property
    def rule(self) -> str:
        """The rule that asks, as written in the settings; `tool`: the tool itself asks; `client`: the client runs the tool."""
        return self.request["rule"]

    @property
    def expires_at(self) -> str:
        """ISO time after which no answer is accepted."""
        return self.request["expires_at"]

    @property
    def wo_id(self) -> str:
        """Id of its work order."""
        return self.request["wo_id"]

    @property
    def is_of_client(self) -> bool:
        """Whether it is the call of a client's tool, which needs no approval."""
        return self.request["reason"] == "client_tool"

    @property
    def is_pending(self) -> bool:
        """Whether an answer continues the turn: the first answer, or after a crash the same answer again."""
        return self.status in ("waiting", "answered")

    @property
    def status(self) -> ApprovalStatus:
        """`waiting`; `answered`, until the continued turn has ended (after a crash, answer again); or how it ended."""
        decision = self.resolved["decision"] if self.resolved is not None else None
        if self.abandoned is None:
            if self.is_over:
                return decision or "void"
            if decision is None:
                return "waiting" if self.now < self.request["expires_at"] else "expired"
            return "answered"
        return decision or "void"


async def list_approvals(ledger: ReadableLedger, now: str, *, session_id: str | None = None) -> list[ApprovalInfo]:
    """Returns the requests of one session, or of all sessions, oldest first.

    Args:
        ledger: the supervisor's ledger
        now: ISO time
        session_id: only those of this session; None: of all
    """
    found = [each async for each in ledger.read(key=APPROVALS_KEY) if session_id in (None, each.session_id)]
    for session in sorted({each.session_id or "" for each in found}):
        ends = ledger.read(session_id=session, entry_type=(events.SESSION_END, events.WO_ABANDONED))
        found += [entry async for entry in ends]
    return approvals_in(found, now)


def approvals_in(entries: Iterable[StoredEntry], now: str) -> list[ApprovalInfo]:
    """The requests among entries, in order. Besides answers, `WO_ABANDONED` and `SESSION_END` change their status."""
    over, found = set[str | None](), list[ApprovalInfo]()
    asked, answers, ended = dict[str, StoredEntry](), dict[str, StoredEntry](), dict[str, str]()
    for entry in entries:
        if entry.entry_type == events.APPROVAL_REQUESTED:
            asked.setdefault(entry.entity_id, entry)
        elif entry.entry_type == events.APPROVAL_RESOLVED:
            answers.setdefault(entry.entity_id, entry)
        elif entry.entry_type == events.WO_ABANDONED:
            ended[entry.entity_id] = payload_as(WorkOrderAbandonedPayload, entry.payload)["reason"]
        elif entry.entry_type == events.SESSION_END:
            over.add(entry.session_id)
    for approval_id, entry in asked.items():
        request = events.read_as(ApprovalRequestedPayload, entry)
        answer = answers.get(approval_id)
        resolved = payload_as(ApprovalResolvedPayload, answer.payload) if answer is not None else None
        at = answer.timestamp if answer is not None else None
        abandoned = ended.get(request["wo_id"])
        is_over = entry.session_id in over
        owner, session_id = class_of_ledger(entry.ledger_id), entry.session_id or ""
        found.append(ApprovalInfo(owner, session_id, entry.timestamp, request, resolved, at, abandoned, is_over, now))
    return found
