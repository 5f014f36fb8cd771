"""Every error that Kitchener raises, in one tree.

    KitchenerError
    ├── ConfigError
    ├── CallerError
    │   ├── InvalidMessage, InvalidOutput, InvalidPart, UnsupportedPart
    │   ├── UnknownSession, SessionEnded, SessionExists, SessionMismatch, SessionBusy, ReentrantTurn
    │   ├── SubjectErased, UnknownSubject
    │   ├── IdempotencyConflict, OutcomeUnknown
    │   ├── UnknownApproval, ApprovalAnswered, ApprovalVoid
    │   ├── InvalidTransition, InvalidLifecycle
    │   ├── InvalidSignal, InvalidTimestamp, UnknownArtifact
    │   └── OverlayRefused
    │       └── ProvenanceError
    ├── NotOnRecord
    ├── Overloaded, TurnTimeout, TurnReplaced
    ├── RuntimeClosed, ActorStopped
    ├── AdminUnavailable, AdminRefused, AdminUnanswered
    ├── LedgerError
    │   ├── LedgerDamaged
    │   │   └── LedgerTailMissing
    │   ├── LedgerLocked, LedgerPathError, LedgerWriteError, LedgerClosed, LedgerClockError
    │   ├── EntryRefused, EntryTooLarge, EventVersionError, PartDamaged
    │   └── CommitUnknown, StaleHead
    ├── FolderDamaged
    ├── SealingError, SigningError
    └── PromptError, ToolError, ProviderError, ExecutorError

Callers catch `KitchenerError` for all of them. Each error carries its facts as attributes; its text names the thing, the
value and the remedy.
"""

from typing import Literal, get_args

from kitchener.plain_names import quoted


class KitchenerError(Exception):
    """Root of all errors of this package."""


class ConfigError(KitchenerError):
    """A setting is wrong.

    Attributes:
        source: the file, environment variable or argument with the setting
        key: dotted key inside the source; "": the whole source
        value: the value found, shortened; never a secret
        expected: a description of valid values
    """

    def __init__(self, source: str, key: str, value: str, expected: str) -> None:
        self.source, self.key, self.value, self.expected = source, key, value, expected
        where = f"{source}: {key}" if key else source
        shown = f" = {value}" if value else ""
        super().__init__(f"{where}{shown}: {expected}")


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
        self.name, self.media_type, self.accepted = name, media_type, accepted
        what = f"{quoted(name)} is {media_type}, and the model that would reply takes {', '.join(accepted) or 'text'} only"
        remedy = "use another model; if this one does take it, say so in `media_types` of its [router.providers] table"
        super().__init__(f"{what}: {remedy}")


class UnknownSession(CallerError):
    """No session of this id is in the agent class's ledger."""

    def __init__(self, session_id: str, agent_class: str) -> None:
        self.session_id, self.agent_class = session_id, agent_class
        known = "`kitchener session list` shows the sessions there are"
        super().__init__(f"session {session_id!r} is not known to agent class {agent_class!r}; {known}")


class SessionEnded(CallerError):
    """The session was ended; start a new one."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"session {session_id!r} has ended and takes no more turns; start a new session")


class SubjectErased(CallerError):
    """The session's text was erased and it takes no more turns, or its subject is being erased now."""

    def __init__(self, subject_id: str, session_id: str | None = None) -> None:
        self.subject_id, self.session_id = subject_id, session_id
        if session_id is None:
            text = f"subject {subject_id!r} is being erased; nothing of theirs is taken until that is done"
        else:
            text = f"session {session_id!r} is over: its subject {subject_id!r} was erased; start a new session"
        super().__init__(text)


class UnknownSubject(CallerError):
    """No subject of this id has a key, a session or a memory."""

    def __init__(self, subject_id: str, problem: str) -> None:
        self.subject_id, self.problem = subject_id, problem
        super().__init__(f"subject {subject_id!r}: {problem}; nothing was erased")


class SessionExists(CallerError):
    """An import would add a session that this root has already, and that lacks entries of the folder."""

    def __init__(self, session_id: str, agent_class: str) -> None:
        self.session_id, self.agent_class = session_id, agent_class
        super().__init__(
            f"session {session_id!r} is here already, with agent class {agent_class!r}, and other entries than the folder has;"
            " nothing was imported. A session goes on in one place only: import into another root"
        )


class SessionMismatch(CallerError):
    """The session does not belong to the agent class or the subject that the caller named. The error omits the owner."""

    def __init__(self, session_id: str, what: str, expected: str) -> None:
        self.session_id, self.what, self.expected = session_id, what, expected
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
    """The idempotency key was used before with another message."""

    def __init__(self, key: str, turn_id: str) -> None:
        self.key, self.turn_id = key, turn_id
        super().__init__(f"idempotency key {key!r} belongs to turn {turn_id} with another message; use a new key")


class OutcomeUnknown(CallerError):
    """The key's turn was aborted while a tool with effects ran. Whether the effect happened is unknown."""

    def __init__(self, key: str, turn_id: str, tool_id: str) -> None:
        self.key, self.turn_id, self.tool_id = key, turn_id, tool_id
        super().__init__(
            f"turn {turn_id} of idempotency key {key!r} stopped while tool {tool_id!r} was running, so its effect may"
            " or may not have happened; check it, then send the message with a new key"
        )


class UnknownApproval(CallerError):
    """No tool call waits, or has waited, under this id. `of_client`: the call of a client's tool was looked for."""

    def __init__(self, approval_id: str, *, of_client: bool = False) -> None:
        self.approval_id, self.of_client = approval_id, of_client
        what = "client call" if of_client else "approval"
        where = "`client_calls` of a result has those" if of_client else "`kitchener approval list` shows what waits"
        super().__init__(f"{what} {approval_id!r} is not on record; {where}")


class ApprovalAnswered(CallerError):
    """The request, or with `of_client` the call of a client's tool, has another answer, or nobody can answer it any more."""

    def __init__(self, approval_id: str, decision: str, *, of_client: bool = False) -> None:
        self.approval_id, self.decision, self.of_client = approval_id, decision, of_client
        what, other = ("client call", "output") if of_client else ("approval", "answer")
        again = "ask the agent again for what is still wanted"
        super().__init__(f"{what} {approval_id!r} takes no other {other}: it is {decision}; {again}")


class ApprovalVoid(CallerError):
    """The tool has changed since its call was asked for, so nothing was done. `result`: of the turn that told the model."""

    def __init__(self, approval_id: str, tool_id: str, result: object = None) -> None:
        self.approval_id, self.tool_id, self.result = approval_id, tool_id, result
        super().__init__(f"approval {approval_id!r} is void: tool {tool_id!r} has changed since; ask the agent again")


class InvalidTransition(CallerError):
    """A work order cannot change from its state to the requested one."""

    def __init__(self, wo_id: str, state: str, to: str) -> None:
        self.wo_id, self.state, self.to = wo_id, state, to
        super().__init__(f"work order {wo_id} cannot go from {state!r} to {to!r}")


class InvalidLifecycle(CallerError):
    """The requested change is not possible in the intent's present state."""

    def __init__(self, intent_id: str, problem: str) -> None:
        self.intent_id, self.problem = intent_id, problem
        named = problem if intent_id in problem else f"intent {intent_id}: {problem}"
        super().__init__(f"{named}; nothing was written")


class InvalidSignal(CallerError):
    """The signal id is not `kind:value` with a known kind."""

    def __init__(self, signal_id: str, expected: str) -> None:
        self.signal_id, self.expected = signal_id, expected
        super().__init__(f"signal id {quoted(signal_id, 100)}: {expected}; nothing was written")


class InvalidTimestamp(CallerError, ValueError):
    """A time is invalid or has no time zone."""

    def __init__(self, what: str, value: object) -> None:
        self.what, self.value = what, value
        super().__init__(
            f"{what} = {quoted(value, 60)}: expected an aware datetime or ISO text with a zone,"
            " such as 2026-02-18T10:30:00+00:00"
        )


class OverlayRefused(CallerError):
    """A field of an overlay is missing or wrong; nothing was written."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        self.field, self.value, self.expected = field, value, expected
        super().__init__(f"overlay {field} = {quoted(value, 100)}: {expected}; nothing was written")


class ProvenanceError(OverlayRefused):
    """An overlay names no source events, or events that are not in its subject's memory."""


class UnknownArtifact(CallerError, ValueError):
    """No artifact of this id belongs to the namespace."""

    def __init__(self, artifact_id: str, namespace: str) -> None:
        self.artifact_id, self.namespace = artifact_id, namespace
        known = "`kitchener memory biases` shows those there are"
        super().__init__(f"artifact {artifact_id!r} is not known in {namespace!r}; {known}")


class NotOnRecord(KitchenerError):
    """The ledgers do not contain what was asked for. The error says where to see what they contain."""


class Overloaded(KitchenerError):
    """A bounded queue stayed full until the deadline. Send again later.

    Without a `turn_id`, nothing was started. With it, a step of that turn waited for room, and the turn was aborted.
    `waited_for` then names the attempts at a model that failed before, as in `TurnTimeout`.
    """

    def __init__(self, what: str, limit: int, turn_id: str | None = None, waited_for: str = "") -> None:
        self.what, self.limit, self.turn_id, self.waited_for = what, limit, turn_id, waited_for
        end = "nothing was started" if turn_id is None else f"turn {turn_id} waited for room until its deadline and was aborted"
        why = f" ({waited_for})" if waited_for else ""
        super().__init__(f"{what} is full ({limit} waiting){why}; {end}, send again later")


class TurnTimeout(KitchenerError):
    """The turn passed its deadline, `seconds` after its start. It was aborted and the session is usable.

    `waited_for` is what it waited for at a model, such as the attempts that failed; "": it asked none.
    """

    def __init__(self, turn_id: str, seconds: float, waited_for: str = "") -> None:
        self.turn_id, self.seconds, self.waited_for = turn_id, seconds, waited_for
        why = f" ({waited_for})" if waited_for else ""
        super().__init__(f"turn {turn_id} passed its deadline of {seconds:g} s{why} and was aborted; the session is usable")


class TurnReplaced(KitchenerError):
    """A newer message of the same session replaced this one (`overlap_policy = "replace"`)."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"a newer message of session {session_id!r} replaced this one")


class RuntimeClosed(KitchenerError):
    """The runtime is shutting down or has stopped."""


class ActorStopped(KitchenerError):
    """An actor ended before it could reply."""


class AdminUnavailable(KitchenerError):
    """The process that has the root open takes no administration, or not this request. Nothing was done."""


class AdminRefused(KitchenerError):
    """The process that has the root open could not do what was asked.

    Attributes:
        kind: name of the class of the error there
    """

    def __init__(self, kind: str, message: str) -> None:
        self.kind, self.message = kind, message
        super().__init__(message)

    @property
    def error_class(self) -> type[KitchenerError]:
        """The class of the error there; `KitchenerError` if this version has no such class."""
        found = globals().get(self.kind)
        return found if isinstance(found, type) and issubclass(found, KitchenerError) else KitchenerError


class AdminUnanswered(KitchenerError):
    """The process that has the root open did not answer in time. The change may have been made."""


class LedgerError(KitchenerError):
    """Root of the ledger's errors."""


class LedgerDamaged(LedgerError):
    """Stored bytes do not verify. Nothing was changed.

    Attributes:
        path: the file
        line: 1-based line number of the first fault
        offset: byte offset of that line
        field: the part that is wrong (`entry_hash`, `seq`, `framing` …)
        expected, found: the values as text, shortened
    """

    def __init__(self, path: str, *, line: int, offset: int, field: str, expected: str, found: str) -> None:
        self.path, self.line, self.offset = path, line, offset
        self.field, self.expected, self.found = field, expected, found
        where = f"{path}: line {line} (byte {offset}): {field}"
        super().__init__(f"{where}: expected {expected}, found {found}; nothing was changed")


class LedgerTailMissing(LedgerDamaged):
    """The ledger ends before entries that were durable. It was cut off, or an old copy was restored."""


class PartDamaged(LedgerError):
    """The stored bytes of an image or a file are missing, were changed, or cannot be decrypted."""

    def __init__(self, path: str, content_hash: str, problem: str) -> None:
        self.path, self.content_hash, self.problem = path, content_hash, problem
        super().__init__(f"{path}: {problem} (content {content_hash[:24]}…); restore it from a backup")


class LedgerLocked(LedgerError):
    """Another writer holds the ledger."""

    def __init__(self, path: str, holder: str) -> None:
        self.path, self.holder = path, holder
        super().__init__(f"{path} is in use by {holder}; one process writes a ledger at a time: stop it, or use another root")


class LedgerPathError(LedgerError):
    """The path cannot hold a ledger."""

    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"{path}: {problem}")


class LedgerWriteError(LedgerError):
    """A write or fsync failed. Waiting entries may or may not be stored; the ledger takes no more entries."""

    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"{path}: cannot write: {problem}; the ledger takes no more entries until it is opened again")


class CommitUnknown(LedgerError):
    """The turn is complete, but the disk did not answer in time. The turn's record may or may not be durable."""

    def __init__(self, turn_id: str) -> None:
        self.turn_id = turn_id
        problem = "its record was not durable in time"
        super().__init__(f"turn {turn_id} is complete, but {problem}; send it again with the same idempotency key")


class LedgerClosed(LedgerError):
    """The ledger was used after it was closed."""


class LedgerClockError(LedgerError):
    """The clock jumped ahead, or the ledger's last entry lies in the future."""


class EntryRefused(LedgerError):
    """A value has no canonical form, so it cannot enter a ledger. `path` leads to the wrong part: `payload.arguments[2]`."""

    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"{path or 'value'}: {problem}")


class EntryTooLarge(LedgerError):
    """The entry is larger than `max_entry_bytes`; nothing was written."""

    def __init__(self, ledger_id: str, entry_type: str, size: int, limit: int) -> None:
        self.ledger_id, self.entry_type, self.size, self.limit = ledger_id, entry_type, size, limit
        super().__init__(f"{ledger_id}: {entry_type} of {size} bytes exceeds max_entry_bytes = {limit}; not written")


class EventVersionError(LedgerError):
    """An entry was written by a newer version of Kitchener than this one."""


class StaleHead(LedgerError):
    """The session's last entry is not the one that the writer expected, because another writer added entries."""

    def __init__(self, ledger_id: str, session_id: str, expected: str, found: str) -> None:
        self.ledger_id, self.session_id, self.expected, self.found = ledger_id, session_id, expected, found
        super().__init__(f"{ledger_id}: session {session_id}: expected last entry {expected}, found {found}")


class FolderDamaged(KitchenerError):
    """A file of an exported session is missing, or `field` of it is not what the export wrote. Nothing was imported."""

    def __init__(self, path: str, field: str, expected: str, found: str) -> None:
        self.path, self.field, self.expected, self.found = path, field, expected, found
        super().__init__(f"{path}: {field}: expected {expected}, found {found}; nothing was imported: export the session again")


class SealingError(KitchenerError):
    """A value cannot be sealed or opened."""


class SigningError(KitchenerError):
    """A key to sign or to check signatures with is missing or invalid. The error never shows a key."""


class PromptError(KitchenerError):
    """A contract or prompt pack is missing, does not match its hash in the manifest, or lacks a variable."""


class ToolError(KitchenerError):
    """A tool is unknown, not allowed here, or was declared wrongly."""


_Passing = Literal["rate_limited", "server_error", "connection", "timeout", "malformed", "empty"]
_Lasting = Literal[
    "refused", "authentication", "bad_request", "breaker_open", "forbidden", "exhausted", "not_recorded", "spending_limit"
]
ProviderReason = Literal[_Passing, _Lasting]
"""Why a model call failed. A retry may help with the first six only."""

RETRYABLE_REASONS: frozenset[ProviderReason] = frozenset(get_args(_Passing))


class ProviderError(KitchenerError):
    """A model call failed.

    Attributes:
        provider_id: the provider
        reason: a `ProviderReason`
        status: HTTP status, if there was one
        retry_after_s: the pause that the provider asked for, seconds; None: it asked for none
        output_begun: whether text had already been streamed
    """

    def __init__(
        self,
        provider_id: str,
        reason: ProviderReason,
        detail: str,
        *,
        status: int | None = None,
        retry_after_s: float | None = None,
        output_begun: bool = False,
    ) -> None:
        self.provider_id, self.reason, self.detail = provider_id, reason, detail
        self.status, self.retry_after_s, self.output_begun = status, retry_after_s, output_begun
        super().__init__(f"provider {provider_id!r}: {reason}: {detail}")

    @property
    def is_retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.reason in RETRYABLE_REASONS


class ExecutorError(KitchenerError):
    """The executor itself failed (a bug, not a model or tool failure). The cause is chained."""
