"""The answer that a person or a client gives to a waiting tool call: checked, and as the payload of its entry.

`approvals.py` decides whether a request takes the answer. Explained in `docs/approval.md`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast, get_args

from kitchener.actors.admission.argument_checks import check_name, check_text
from kitchener.actors.tools.results import storable
from kitchener.canonical import canonical_bytes
from kitchener.errors import CallerError, EntryRefused
from kitchener.ids import SessionId, split_approval_id
from kitchener.plain_names import quoted
from kitchener.records.entries import (
    CLIENT_DECISIONS,
    ApprovalResolvedPayload,
    ApprovalScope,
    ClientDecision,
    Json,
    PersonDecision,
)
from kitchener.records.tools.client_tools import ClientOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenAnswer:
    """The answer of a person or a client."""

    decision: PersonDecision | ClientDecision
    arguments: Mapping[str, object] | None = None
    """The arguments to use in place of the model's; None: the model's."""
    answer: Json = None
    """The answer to the tool's own question (None: yes), or the output of a client's tool."""
    scope: ApprovalScope = "once"
    answered_by: str | None = None
    message: str | None = None

    def check(self) -> None:
        """Raises CallerError unless the answer can be recorded."""
        if self.scope not in get_args(ApprovalScope):
            raise CallerError(f"scope = {quoted(self.scope)}: expected 'once' or 'session'")
        if self.answered_by is not None:
            check_name("answered_by", self.answered_by)
        if self.message is not None:
            check_text("message", self.message)
        if self.arguments is not None and not isinstance(self.arguments, Mapping):
            raise CallerError(f"arguments = {quoted(self.arguments)}: expected an object with the arguments of the tool")
        for name, value in (("arguments", self.arguments), ("answer", self.answer)):
            try:
                canonical_bytes(value, at=name)
            except EntryRefused as error:
                raise CallerError(str(error)) from None

    @property
    def is_of_client(self) -> bool:
        """Whether it is the output of a client's tool."""
        return self.decision in CLIENT_DECISIONS

    def payload(self, approval_id: str, wo_id: str) -> ApprovalResolvedPayload:
        """The answer to one request, for the ledger."""
        found: ApprovalResolvedPayload = {
            "approval_id": approval_id,
            "wo_id": wo_id,
            "decision": self.decision,
            "scope": self.scope,
        }
        if self.arguments is not None:
            found["override_args"] = dict(self.arguments)
        if self.answer is not None:
            found["answer"] = self.answer
        if self.message is not None:
            found["message"] = self.message
        if self.answered_by is not None:
            found["answered_by"] = self.answered_by
        return found

    def is_same(self, recorded: ApprovalResolvedPayload) -> bool:
        """Whether this answer equals a recorded one. Who gave it does not matter."""
        now = self.payload(recorded["approval_id"], recorded["wo_id"])
        return all(now.get(each) == recorded.get(each) for each in ("decision", "scope", "override_args", "answer", "message"))


def work_order_of(outputs: Mapping[str, object]) -> tuple[SessionId, str]:
    """Returns the session and the work order of a client's calls; raises CallerError unless all are of one work order."""
    if not isinstance(outputs, Mapping) or not outputs:
        raise CallerError(f"outputs = {quoted(outputs)}: expected outputs by the ids of `client_calls`, at least one")
    found = set[tuple[SessionId, str]]()
    for call_id in outputs:
        try:
            session_id, wo_id, request = split_approval_id(call_id)
        except CallerError:
            request = None
        if request is None:
            raise CallerError(f"outputs of {quoted(call_id)}: expected the `call_id` of a client call, WO-SES-…-001.1")
        found.add((session_id, wo_id))
    if len(found) != 1:
        raise CallerError(f"outputs of {', '.join(map(quoted, outputs))}: expected the ids of calls of one work order")
    return found.pop()


def given_output(call_id: str, output: object) -> GivenAnswer:
    """Returns a client's output of one call as an answer; raises CallerError if the output cannot be recorded."""
    made = output if isinstance(output, ClientOutput) else ClientOutput(cast(Json, output))
    if made.error is None:
        given = GivenAnswer(decision="returned", answer=made.output)
    elif not isinstance(made.error, str) or made.output is not None:
        raise CallerError(f"the output of client call {call_id!r}: expected an output, or an error as text, and not both")
    else:
        given = GivenAnswer(decision="failed", message=storable(made.error))
    try:
        canonical_bytes(given.answer, at="output")
    except EntryRefused as error:
        raise CallerError(f"the output of client call {call_id!r}: {error}") from None
    return given
