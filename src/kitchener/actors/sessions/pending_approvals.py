"""Folds a session's requests for approval and their answers into the open requests and the permissions for the session.

Pure. `session_state.py` applies these functions. The content of a request is not kept: `actors/approval` reads it from the
ledger.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kitchener.records.entries import ApprovalDecision, ApprovalRequestedPayload, ApprovalResolvedPayload

ASKED_CHARS: Final = 2_000
"""Most characters of a message that are repeated when its turn continues."""


@dataclass(slots=True)
class WaitingRequest:
    """A request and its answer."""

    approval_id: str
    tool_id: str
    tool_hash: str
    expires_at: str
    """ISO time."""
    is_after_untrusted: bool
    is_of_client: bool = False
    """Whether it waits for the client that runs the tool, not for a person."""
    decision: ApprovalDecision | None = None
    """The answer; None: there is no answer yet."""


@dataclass(slots=True)
class DeferredWork:
    """A work order that waits for a person."""

    turn_id: str
    asked_for: str
    """The beginning of the message that the work order answers."""
    loop: list[str] = field(default_factory=list)
    """The work orders of the tool loop, oldest first. A continued turn that is cut off adds its own."""
    requests: dict[str, WaitingRequest] = field(default_factory=dict)
    """The requests of the work order, by approval id."""

    @property
    def open(self) -> list[WaitingRequest]:
        """The requests without an answer."""
        return [each for each in self.requests.values() if each.decision is None]


@dataclass(frozen=True, slots=True)
class Grant:
    """A tool that a person allowed for the rest of the session."""

    approval_id: str
    tool_hash: str
    """Hash of the tool's definition at that time. Another definition is not allowed."""
    covers_untrusted: bool
    """Whether it also applies after untrusted text was read: the person was asked about exactly that."""


@dataclass(slots=True)
class PendingApprovals:
    """The open requests of a session, and the permissions for the session."""

    deferred: dict[str, DeferredWork] = field(default_factory=dict)
    """The deferred work orders, by id, in the order in which they were deferred."""
    grants: dict[str, Grant] = field(default_factory=dict)
    """The tools that were allowed for the session, by id."""
    asked_by: set[str] = field(default_factory=set)
    """The tools that asked a person something. Replies, which later turns show, contain their words."""

    @property
    def open(self) -> list[WaitingRequest]:
        """All requests without an answer."""
        return [each for work in self.deferred.values() for each in work.open]

    def request(self, payload: ApprovalRequestedPayload) -> None:
        """Adds a request."""
        is_of_client = payload["reason"] == "client_tool"
        if payload["reason"] != "tool_call" and not is_of_client:
            self.asked_by.add(payload["tool"])
        work = self.deferred.get(payload["wo_id"])
        if work is not None:
            work.requests[payload["approval_id"]] = WaitingRequest(
                payload["approval_id"],
                payload["tool"],
                payload["tool_hash"],
                payload["expires_at"],
                payload.get("after_untrusted", False),
                is_of_client,
            )

    def resolve(self, payload: ApprovalResolvedPayload) -> None:
        """Adds an answer. Only the first one to a request counts."""
        work = self.deferred.get(payload["wo_id"])
        found = work.requests.get(payload["approval_id"]) if work is not None else None
        if found is None or found.decision is not None:
            return
        found.decision = payload["decision"]
        if payload["decision"] == "approved" and payload["scope"] == "session":
            covers = found.is_after_untrusted
            earlier = self.grants.get(found.tool_id)
            if earlier is not None and earlier.tool_hash == found.tool_hash:
                covers = covers or earlier.covers_untrusted
            self.grants[found.tool_id] = Grant(found.approval_id, found.tool_hash, covers)


def due(requests: Iterable[WaitingRequest], now: str) -> list[WaitingRequest]:
    """The requests that have waited for too long at an ISO time."""
    return [each for each in requests if each.expires_at <= now]


def granted(grants: Mapping[str, Grant], hashes: Mapping[str, str], *, untrusted: bool) -> dict[str, str]:
    """Returns the tools that may run unasked, each with the approval that allows it.

    Args:
        grants: what was allowed for the session
        hashes: the hashes of the tools' present definitions
        untrusted: True: only permissions that also apply after untrusted text was read
    """
    return {
        tool_id: each.approval_id
        for tool_id, each in grants.items()
        if hashes.get(tool_id) == each.tool_hash and (each.covers_untrusted or not untrusted)
    }
