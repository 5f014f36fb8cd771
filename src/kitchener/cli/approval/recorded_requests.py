"""Reads from a ledger which tool calls wait for a person, and what was answered to others."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from kitchener.cli.options import LedgerPaths
from kitchener.cli.terminal.output import UNREADABLE
from kitchener.clock import SystemClock, iso
from kitchener.ledger import StoredEntry
from kitchener.records import events
from kitchener.records.entries import (
    ApprovalRequestedPayload,
    ApprovalResolvedPayload,
    WorkOrderAbandonedPayload,
    opened,
    payload_as,
)

_BY_ANSWER: Final = ("override_args", "answer", "message", "answered_by", "scope")


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request, and its answer."""

    session_id: str
    requested_at: str
    """ISO time."""
    request: ApprovalRequestedPayload
    resolved: ApprovalResolvedPayload | None
    """None: nobody has answered."""
    resolved_at: str | None
    abandoned: str | None
    """Why its work order has ended; None: it has not."""
    is_over: bool
    """Whether its session has ended, so that nobody can answer any more."""
    now: str
    """ISO time."""

    @property
    def approval_id(self) -> str:
        """The request."""
        return self.request["approval_id"]

    @property
    def turn_id(self) -> str:
        """The turn that asked."""
        return self.request.get("turn_id", "")

    @property
    def arguments_text(self) -> str:
        """The arguments, as JSON."""
        return orjson.dumps(_shown(self.request["arguments"])).decode()

    @property
    def wo_id(self) -> str:
        """Its work order."""
        return self.request["wo_id"]

    @property
    def status(self) -> str:
        """`waiting`; `answered`: the turn that goes on has not ended, so give the answer again; or how it ended."""
        decision = self.resolved["decision"] if self.resolved is not None else None
        if self.abandoned is None:
            if self.is_over:
                return decision or "void"
            if decision is None:
                return "waiting" if self.now < self.request["expires_at"] else "expired"
            return "answered"
        return decision or "void"

    def row(self) -> dict[str, Any]:
        """The request for a list."""
        return {
            "approval_id": self.approval_id,
            "session_id": self.session_id,
            "status": self.status,
            "tool": self.request["tool"],
            "arguments": _shown(self.request["arguments"]),
            "reason": self.request["reason"],
            "rule": self.request["rule"],
            "requested_at": self.requested_at,
            "expires_at": self.request["expires_at"],
        }

    def details(self) -> dict[str, Any]:
        """All that is on record."""
        found = self.row()
        for name in ("message", "response_schema", "tool_hash", "args_hash"):
            if name in self.request:
                found[name] = _shown(self.request.get(name))
        if self.resolved is not None:
            found |= {"decision": self.resolved["decision"], "resolved_at": self.resolved_at}
            found |= {f"given_{name}": _shown(self.resolved.get(name)) for name in _BY_ANSWER if name in self.resolved}
        if self.abandoned is not None:
            found["work_order"] = self.abandoned
        return found


async def read_requests(paths: LedgerPaths, agent_class: str, session_id: str | None = None) -> list[RecordedRequest]:
    """The requests of one session, or of all sessions of an agent class, oldest first."""
    async with paths.reader(agent_class) as ho2m:
        if ho2m is None:
            return []
        found = [each async for each in ho2m.read(key=events.APPROVALS_KEY) if session_id in (None, each.session_id)]
        asked = {(each.session_id or "", str(each.payload["wo_id"])) for each in found}
        for session in sorted({session for session, _ in asked}):
            found += [entry async for entry in ho2m.read(session_id=session, entry_type=events.SESSION_END)]
        for session, wo_id in sorted(asked):
            ends = ho2m.read(session_id=session, entity_id=wo_id, entry_type=events.WO_ABANDONED)
            found += [entry async for entry in ends]
    return requests_in(found)


def requests_in(entries: Iterable[StoredEntry]) -> list[RecordedRequest]:
    """The requests among entries, in the order of the entries. Beside answers, `WO_ABANDONED` and `SESSION_END` count."""
    over, found = set[str | None](), list[RecordedRequest]()
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
    now = iso(SystemClock().time_us())
    for approval_id, entry in asked.items():
        request = payload_as(ApprovalRequestedPayload, events.read_payload(entry.entry_type, entry.payload))
        answer = answers.get(approval_id)
        resolved = payload_as(ApprovalResolvedPayload, answer.payload) if answer is not None else None
        at = answer.timestamp if answer is not None else None
        abandoned = ended.get(request["wo_id"])
        is_over = entry.session_id in over
        found.append(RecordedRequest(entry.session_id or "", entry.timestamp, request, resolved, at, abandoned, is_over, now))
    return found


def _shown(value: Any) -> Any:
    found = opened(value)
    return UNREADABLE if found is None and value is not None else found
