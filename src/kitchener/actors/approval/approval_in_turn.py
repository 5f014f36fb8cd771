"""Applies approval to one turn: which tools wait for a person, the requests, and the tool loop that the turn continues.

`actors/turn/turn.py` calls it. The policy is in `actors/tools/approval_policy.py`. Explained in `docs/approval.md`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kitchener.actors.approval.resumption import read_parts, read_resumption
from kitchener.actors.approval.wording import waiting_reply
from kitchener.actors.sessions.active_session import MadeEntry, SessionManager
from kitchener.actors.sessions.pending_approvals import PendingApprovals, granted
from kitchener.actors.tools.approval_policy import AFTER_UNTRUSTED, OF_THE_CLIENT, OF_THE_TOOL, ApprovalPolicy
from kitchener.actors.work.plan import cost_mapping
from kitchener.canonical import canonical_bytes
from kitchener.config import ApprovalConfig
from kitchener.ids import approval_id
from kitchener.lanes.calling_chain import calling_tool
from kitchener.ledger import LedgerGroup
from kitchener.media.media_types import accepts
from kitchener.memory.timestamps import us_of
from kitchener.records import events
from kitchener.records.entries import (
    ApprovalRequestedPayload,
    ResumesMapping,
    TurnStartedPayload,
    WaitReason,
    WorkOrderDeferredPayload,
)
from kitchener.records.parts import StoredPart
from kitchener.records.ref import RefMapping
from kitchener.records.tools.client_tools import ClientCall, ClientToolset
from kitchener.records.tools.deferred_loop import ApprovalRequest, Resumption
from kitchener.records.work_order import Constraints, WorkOrder
from kitchener.times import iso_of


class ApprovalInTurn:
    """Approval in one turn.

    Args:
        ledgers: the ledgers of the agent class
        session: the session, held by the turn
        policy: the approval policy of the agent class
        config: how long a request waits
    """

    __slots__ = ("_config", "_is_after_untrusted", "_ledgers", "_policy", "_session", "parts", "refs", "resumed")

    def __init__(self, ledgers: LedgerGroup, session: SessionManager, policy: ApprovalPolicy, config: ApprovalConfig) -> None:
        self._ledgers, self._session, self._policy, self._config = ledgers, session, policy, config
        self._is_after_untrusted = False
        self.resumed: Resumption | None = None
        """The deferred tool loop that the turn continues; None: it continues none."""
        self.refs: list[RefMapping] = []
        """The entries of the loop, of the answers to its requests, and of `parts`."""
        self.parts: tuple[StoredPart, ...] = ()
        """The images and files of the messages that the loop answers."""

    def note_caller(self, fields: TurnStartedPayload) -> None:
        """Adds to the record that the turn was called by a tool whose own turn had read text of an untrusted source."""
        if (tool := calling_tool()) is not None and tool.has_read_untrusted:
            fields["after_untrusted"] = self._is_after_untrusted = True

    async def resume(self, resumes: ResumesMapping) -> None:
        """Reads the loop that the turn continues."""
        self._is_after_untrusted = resumes.get("after_untrusted", False)
        session_id = self._session.session_id
        self.resumed, self.refs, turns = await read_resumption(self._ledgers, session_id, resumes)
        if self._session.state.has_parts:
            found = await read_parts(self._ledgers, session_id, turns)
            self.parts = tuple([part for part, _ in found])
            self.refs += [ref for _, ref in found]

    def parts_beside(self, shown: Sequence[StoredPart], accepted: tuple[str, ...]) -> list[StoredPart]:
        """Returns the members of `parts` that the context does not show already and that the model takes."""
        return [each for each in self.parts if each not in shown and accepts(accepted, each.media_type)]

    @property
    def held_back(self) -> frozenset[str]:
        """The tools that do not run before the reply, because a person may have to be asked about them."""
        policy = self._policy
        if policy.after_untrusted == "allow":
            return policy.asking
        return policy.held_back(shows_untrusted=self._is_after_untrusted or self.shows_untrusted)

    @property
    def shows_untrusted(self) -> bool:
        """Whether the session shows text of an untrusted source: a result, or a question in an earlier reply."""
        if self._session.results.has_untrusted:
            return True
        approvals = self._session.state.approvals
        return approvals is not None and not approvals.asked_by.isdisjoint(self._policy.untrusted)

    def limits(self, constraints: Constraints, results: Sequence[Mapping[str, object]]) -> Constraints:
        """Returns the constraints of the reply.

        Args:
            constraints: those of the agent class
            results: of the tools that ran before the reply; those of untrusted sources have a `source`
        """
        untrusted = self._is_after_untrusted or self.shows_untrusted
        approvals = self._session.state.approvals
        if results and not untrusted:
            untrusted = any("source" in each or each.get("tool_id") in self._policy.untrusted for each in results)
        if approvals is None and not untrusted:
            return constraints
        return limits_in_session(constraints, self._policy, approvals, shows_untrusted=untrusted)

    @property
    def resumed_id(self) -> str | None:
        """The deferred work order that the turn continues; None: it continues none."""
        return self.resumed.wo_id if self.resumed is not None else None

    @staticmethod
    def earlier_results(wo: WorkOrder) -> list[Mapping[str, object]]:
        """The tool results in the loop that a rejected work order continued. Its retry, which calls no tools, is shown them."""
        rounds = wo.resumption.rounds if wo.resumption is not None else ()
        heard = [pair for each in rounds for pair in zip(each.uses, each.outcomes, strict=True)]
        return [
            {
                "tool_id": use.tool_id,
                **({"source": outcome.untrusted_source} if outcome.untrusted_source is not None else {}),
                "result": outcome.result,
            }
            for use, outcome in heard
            if outcome is not None and outcome.error is None
        ]

    def defer(self, wo: WorkOrder, turn_ts: str, client_tools: ClientToolset | None = None) -> "Deferral":
        """Returns how the turn ends with a deferred work order.

        Args:
            wo: the deferred work order
            turn_ts: ISO time of the turn
            client_tools: the tools that its caller runs; None: none
        """
        policy = self._policy
        if client_tools is not None:
            policy = replace(policy, hashes={**policy.hashes, **dict.fromkeys(client_tools.names, client_tools.hash)})
        return defer(wo, policy, self._config, turn_ts, self._ledgers.ho2m.content_digest)


def limits_in_session(
    limits: Constraints, policy: ApprovalPolicy, approvals: PendingApprovals | None, *, shows_untrusted: bool
) -> Constraints:
    """Returns the constraints of a reply, adjusted to what a person allowed for the session and to untrusted text.

    Args:
        limits: those of the agent class, with all tools that ask
        policy: what the agent class says of its tools
        approvals: the session's open requests and permissions; None: no person was ever asked
        shows_untrusted: whether the turn shows the model text of an untrusted source
    """
    changes: dict[str, object] = {"has_read_untrusted": True} if shows_untrusted else {}
    if approvals is not None:
        always = granted(approvals.grants, policy.hashes, untrusted=False)
        later = granted(approvals.grants, policy.hashes, untrusted=True)
        asks = tuple([each for each in limits.ask_tools if each not in always])
        effects = [each for each in policy.effects if each not in later and each not in asks and each in limits.allowed_tools]
        changes["ask_tools"] = asks
        changes["ask_after_untrusted"] = tuple(effects) if policy.after_untrusted == "ask" else ()
        used = [*[each for tool, each in always.items() if tool in limits.ask_tools], *later.values()]
        changes["grants"] = tuple(dict.fromkeys(used))
        open_calls = approvals.open
        of_client = sum(each.is_of_client for each in open_calls)
        changes["most_requests"] = max(0, limits.most_requests - (len(open_calls) - of_client))
        if limits.client_tools:
            changes["most_client_calls"] = max(0, limits.most_client_calls - of_client)
    return limits.replaced(**changes) if changes else limits


class Deferral(NamedTuple):
    """The end of a turn whose tool calls wait for a person, or for the client that runs them."""

    entries: list[MadeEntry]
    """For HO2m, written in one commit: type, entity and fields."""
    response: str | None
    """The reply that asks a person; None: no person is asked, and the reply is the model's text beside its calls."""
    approval_ids: tuple[str, ...]
    client_calls: tuple[ClientCall, ...] = ()


def defer(
    wo: WorkOrder, policy: ApprovalPolicy, config: ApprovalConfig, turn_ts: str, digest: Callable[[str, bytes], str]
) -> Deferral:
    """Returns how a turn ends with a deferred work order.

    Args:
        wo: the deferred work order
        policy: what the agent class says of its tools
        config: how long a request waits
        turn_ts: ISO time of the turn
        digest: hashes content of a subject
    """
    expires_at = iso_of(us_of(turn_ts, "turn_ts") + config.expires_s * 1_000_000)
    requests = [(approval_id(wo.wo_id, each.call), each) for each in wo.requests]
    asked = [(own_id, each) for own_id, each in requests if each.reason != "client_tool"]
    calls = [ClientCall(own_id, each.tool_id, each.arguments) for own_id, each in requests if each.reason == "client_tool"]
    reason: WaitReason = "approval" if asked else "client_tool"
    deferred: WorkOrderDeferredPayload = {"wo_id": wo.wo_id, "reason": reason, "cost": cost_mapping(wo.cost)}
    entries: list[MadeEntry] = [(events.WO_DEFERRED, wo.wo_id, deferred)]
    for own_id, each in requests:
        payload = _requested(wo, own_id, each, policy)
        payload["expires_at"] = expires_at
        payload["args_hash"] = digest(wo.subject_id, canonical_bytes(each.arguments, at="arguments"))
        entries.append((events.APPROVAL_REQUESTED, own_id, payload))
    response = waiting_reply(asked, policy.untrusted) if asked else None
    return Deferral(entries, response, tuple([own_id for own_id, _ in asked]), tuple(calls))


def _requested(wo: WorkOrder, own_id: str, request: ApprovalRequest, policy: ApprovalPolicy) -> ApprovalRequestedPayload:
    rule = AFTER_UNTRUSTED if request.is_after_untrusted else policy.asks.get(request.tool_id, OF_THE_TOOL)
    if request.reason != "tool_call":
        rule = OF_THE_CLIENT if request.reason == "client_tool" else OF_THE_TOOL
    found: ApprovalRequestedPayload = {
        "approval_id": own_id,
        "wo_id": wo.wo_id,
        "call": request.call,
        "reason": request.reason,
        "rule": rule,
        "tool": request.tool_id,
        "tool_hash": policy.hashes.get(request.tool_id, ""),
        "arguments": dict(request.arguments),
        "args_hash": "",
        "expires_at": "",
    }
    if request.message:
        found["message"] = request.message
    if request.response_schema is not None:
        found["response_schema"] = dict(request.response_schema)
    if request.is_after_untrusted:
        found["after_untrusted"] = True
    return found
