"""Errors of a call: its arguments are wrong, or the session, the subject or the memory does not take it as it is now."""

from collections.abc import Sequence

from kitchener.errors.root import KitchenerError
from kitchener.plain_names import quoted


class CallerError(KitchenerError):
    """The call is wrong: its arguments are invalid, or do not fit the state of the session."""


class InvalidMessage(CallerError):
    """The message is empty, not text, or longer than the limit."""


class InvalidOutput(CallerError):
    """What a caller wants in place of a reply's text is no pydantic model and no JSON schema of an object."""


class InvalidPart(CallerError):
    """An image or a file of a message cannot be read, is too large, or is not what it is declared as."""


class UnsupportedPart(CallerError):
    """The model that would reply takes only content of `accepted`, such as `image/*`. `TURN_REJECTED` has the message."""

    def __init__(self, name: str, media_type: str, accepted: tuple[str, ...]) -> None:
        self.name: str = name
        self.media_type: str = media_type
        self.accepted: tuple[str, ...] = accepted
        what = f"{quoted(name)} is {media_type}, and the model that would reply takes {', '.join(accepted) or 'text'} only"
        remedy = "use another model; if this one does take it, say so in `media_types` of its [router.providers] table"
        super().__init__(f"{what}: {remedy}")


class UnknownSession(CallerError):
    """No session of this id is in the agent class's ledger, nor in the ledgers of `others`, which were searched after it."""

    def __init__(self, session_id: str, agent_class: str, others: Sequence[str] = ()) -> None:
        self.session_id: str = session_id
        self.agent_class: str = agent_class
        self.others: Sequence[str] = others
        whose = f"agent class{'es' if others else ''} {', '.join(map(repr, (agent_class, *others)))}"
        super().__init__(f"session {session_id!r} is not known to {whose}; `kitchener session list` lists the sessions")


class SessionEnded(CallerError):
    """The session was ended; start a new one."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"session {session_id!r} has ended and takes no more turns; start a new session")


class SubjectErased(CallerError):
    """The session's text was erased and it takes no more turns, or its subject is being erased now."""

    def __init__(self, subject_id: str, session_id: str | None = None) -> None:
        self.subject_id: str = subject_id
        self.session_id: str | None = session_id
        if session_id is None:
            text = f"subject {subject_id!r} is being erased; nothing is accepted for this subject until that is done"
        else:
            text = f"session {session_id!r} is over: its subject {subject_id!r} was erased; start a new session"
        super().__init__(text)


class UnknownSubject(CallerError):
    """No subject of this id has a key, a session or a memory."""

    def __init__(self, subject_id: str, problem: str) -> None:
        self.subject_id: str = subject_id
        self.problem: str = problem
        super().__init__(f"subject {subject_id!r}: {problem}; nothing was erased")


class SessionExists(CallerError):
    """An import would add a session that this root has already, and that lacks entries of the folder."""

    def __init__(self, session_id: str, agent_class: str) -> None:
        self.session_id: str = session_id
        self.agent_class: str = agent_class
        super().__init__(
            f"session {session_id!r} already exists here, with agent class {agent_class!r}, and its entries differ"
            " from the folder's; nothing was imported. A session can continue in one place only: import into another root"
        )


class SessionMismatch(CallerError):
    """The session does not belong to the agent class or the subject that the caller named. The error omits the owner."""

    def __init__(self, session_id: str, what: str, expected: str) -> None:
        self.session_id: str = session_id
        self.what: str = what
        self.expected: str = expected
        super().__init__(f"session {session_id!r} does not belong to {what} {expected!r}; start one of their own")


class SessionBusy(CallerError):
    """A turn of this session is running and `overlap_policy` is "reject"."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        policy = "its overlap policy is 'reject'"
        super().__init__(f"session {session_id!r} is busy with a turn and {policy}; send again when it is done")


class ReentrantTurn(CallerError):
    """A tool called `handle_turn` for a session that waits for this tool, or turns nest too deep."""


class IdempotencyConflict(CallerError):
    """The idempotency key was used before with another message, or with other options of it."""

    def __init__(self, key: str, turn_id: str) -> None:
        self.key: str = key
        self.turn_id: str = turn_id
        super().__init__(f"idempotency key {key!r} belongs to turn {turn_id} with other content or options; use a new key")


class OutcomeUnknown(CallerError):
    """The key's turn was aborted while a tool with effects ran. Whether the effect happened is unknown."""

    def __init__(self, key: str, turn_id: str, tool_id: str) -> None:
        self.key: str = key
        self.turn_id: str = turn_id
        self.tool_id: str = tool_id
        super().__init__(
            f"turn {turn_id} of idempotency key {key!r} stopped while tool {tool_id!r} was running, so its effect may"
            " or may not have happened; check it, then send the message with a new key"
        )


class UnknownApproval(CallerError):
    """No tool call waits, or has waited, under this id. `of_client`: the call of a client's tool was looked for."""

    def __init__(self, approval_id: str, *, of_client: bool = False) -> None:
        self.approval_id: str = approval_id
        self.of_client: bool = of_client
        what = "client call" if of_client else "approval"
        where = "`client_calls` of a result has those" if of_client else "`kitchener approval list` shows what waits"
        super().__init__(f"{what} {approval_id!r} is not on record; {where}")


class ApprovalAnswered(CallerError):
    """The request, or with `of_client` the call of a client's tool, has another answer, or can no longer be answered."""

    def __init__(self, approval_id: str, decision: str, *, of_client: bool = False) -> None:
        self.approval_id: str = approval_id
        self.decision: str = decision
        self.of_client: bool = of_client
        what, other = ("client call", "output") if of_client else ("approval", "answer")
        again = "ask the agent again for what is still wanted"
        super().__init__(f"{what} {approval_id!r} takes no other {other}: it is {decision}; {again}")


class ApprovalVoid(CallerError):
    """The tool has changed since its call was asked for, so it was not called.

    Attributes:
        result: the `TurnResult` of the turn that told the model; None: no turn ran, because other calls still wait
    """

    def __init__(self, approval_id: str, tool_id: str, result: object = None) -> None:
        self.approval_id: str = approval_id
        self.tool_id: str = tool_id
        self.result: object = result
        super().__init__(f"approval {approval_id!r} is void: tool {tool_id!r} has changed since; ask the agent again")


class InvalidTransition(CallerError):
    """A work order cannot change from its state to the requested one."""

    def __init__(self, wo_id: str, state: str, to: str) -> None:
        self.wo_id: str = wo_id
        self.state: str = state
        self.to: str = to
        super().__init__(f"work order {wo_id} cannot go from {state!r} to {to!r}")


class InvalidLifecycle(CallerError):
    """The requested change is not possible in the intent's present state."""

    def __init__(self, intent_id: str, problem: str) -> None:
        self.intent_id: str = intent_id
        self.problem: str = problem
        named = problem if intent_id in problem else f"intent {intent_id}: {problem}"
        super().__init__(f"{named}; nothing was written")


class InvalidSignal(CallerError):
    """The signal id is not `kind:value` with a known kind."""

    def __init__(self, signal_id: str, expected: str) -> None:
        self.signal_id: str = signal_id
        self.expected: str = expected
        super().__init__(f"signal id {quoted(signal_id, 100)}: {expected}; nothing was written")


class InvalidTimestamp(CallerError, ValueError):
    """A time is invalid or has no time zone."""

    def __init__(self, what: str, value: object) -> None:
        self.what: str = what
        self.value: object = value
        super().__init__(
            f"{what} = {quoted(value, 60)}: expected an aware datetime or ISO text with a zone,"
            " such as 2026-02-18T10:30:00+00:00"
        )


class OverlayRefused(CallerError):
    """A field of an overlay is missing or wrong; nothing was written."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        self.field: str = field
        self.value: object = value
        self.expected: str = expected
        super().__init__(f"overlay {field} = {quoted(value, 100)}: {expected}; nothing was written")


class ProvenanceError(OverlayRefused):
    """An overlay names no source events, or events that are not in its subject's memory."""


class UnknownArtifact(CallerError, ValueError):
    """No artifact of this id belongs to the namespace."""

    def __init__(self, artifact_id: str, namespace: str) -> None:
        self.artifact_id: str = artifact_id
        self.namespace: str = namespace
        known = "`kitchener memory biases` lists the learned lines"
        super().__init__(f"artifact {artifact_id!r} is not known in {namespace!r}; {known}")
