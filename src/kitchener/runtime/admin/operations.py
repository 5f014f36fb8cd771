"""Defines the operations that change a root or look into a running process. Each has one implementation for both cases.

If no process has the root open, a command carries the operation out itself; otherwise it sends it to that process
(`administration.py`). The operation sees an `AdminRoot` in both cases, and cannot tell which.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError

from kitchener.actors.authority.agent_ruleset import ruleset_of
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.config import RuntimeConfig
from kitchener.context import resolve_active
from kitchener.errors import AdminUnavailable, CallerError, UnknownArtifact
from kitchener.ids import memory_namespace
from kitchener.ledger import LedgerEntry
from kitchener.memory import Overlay
from kitchener.plain_names import quoted
from kitchener.records import events
from kitchener.records.entries import ApprovalScope, CommonPayload, IntentScope, LifecycleVoidedPayload, PersonDecision
from kitchener.records.ref import Ref
from kitchener.runtime.admin.operation import AdminRoot, Operation
from kitchener.runtime.admin.runtime_statistics import RuntimeStatistics
from kitchener.runtime.erasure import ErasureReport
from kitchener.runtime.portable.conversations import ConversationsImport
from kitchener.runtime.portable.importer import SessionImport
from kitchener.runtime.root_layout import agent_of
from kitchener.times import iso_of


def _is_absolute(path: Path) -> Path:
    if not path.is_absolute() or "\0" in str(path):
        raise ValueError("expected an absolute path")
    return path


AbsolutePath = Annotated[Path, AfterValidator(_is_absolute)]

IntentChange = Literal["close", "abandon", "reopen"]
"""The changes of an existing intent."""
_ChangedStatus = Literal["live", "closed", "abandoned"]
"""What an intent is after a change."""


class IntentOutcome(BaseModel):
    """The result of a change of an intent."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)
    intent_id: str
    status: _ChangedStatus
    child_intent_ids: tuple[str, ...] | None = None
    """The children of a fork; None: no fork."""
    active_child_intent_id: str | None = None
    """The active child of a fork; None: no fork, or the children compete."""
    competing: tuple[str, ...] = ()
    """The intents that compete after the change."""


class IntentOperation(Operation[IntentOutcome]):
    """Changes an intent of one session."""

    result = TypeAdapter(IntentOutcome)
    agent_class: str
    session_id: str

    async def run(self, root: AdminRoot) -> IntentOutcome:
        async with root.open_supervisor(self.agent_class) as supervisor:
            done = await self.call(supervisor)
            thread = (await supervisor.session(self.session_id)).thread
            competing = resolve_active(thread.state, ruleset_of(supervisor.config)).competing if thread is not None else ()
            return done.model_copy(update={"competing": competing})

    async def call(self, supervisor: HO2Supervisor) -> IntentOutcome:
        """Makes the change. Does not look up the competing intents."""
        raise AssertionError(f"{type(self).__name__} has no call")


class DeclareIntent(IntentOperation):
    """Adds an intent to a session."""

    op = "intent.declare"
    objective: str
    scope: IntentScope = "SESSION"
    parent: str | None = None
    targets: tuple[str, ...] = ()

    async def call(self, supervisor: HO2Supervisor) -> IntentOutcome:
        made = await supervisor.declare_intent(
            self.session_id, self.objective, scope=self.scope, parent_intent_id=self.parent, targets=self.targets
        )
        return IntentOutcome(intent_id=made, status="live")


class ForkIntent(IntentOperation):
    """Splits an intent into child intents."""

    op = "intent.fork"
    intent_id: str
    objectives: tuple[str, ...]
    active: int | None = None
    """Position of the child that becomes active; None: they compete."""

    async def call(self, supervisor: HO2Supervisor) -> IntentOutcome:
        children = await supervisor.fork_intent(self.session_id, self.intent_id, self.objectives, active=self.active)
        chosen = children[self.active] if self.active is not None else None
        return IntentOutcome(
            intent_id=self.intent_id,
            status="live",
            child_intent_ids=tuple(children),
            active_child_intent_id=chosen,
        )


class ChangeIntent(IntentOperation):
    """Closes, abandons or reopens an intent."""

    op = "intent.change"
    change: IntentChange
    intent_id: str
    why: str
    """The outcome of a closed intent; for other changes, the reason."""

    async def call(self, supervisor: HO2Supervisor) -> IntentOutcome:
        status: _ChangedStatus = "live"
        if self.change == "close":
            await supervisor.close_intent(self.session_id, self.intent_id, self.why)
            status = "closed"
        elif self.change == "abandon":
            await supervisor.abandon_intent(self.session_id, self.intent_id, self.why)
            status = "abandoned"
        else:
            await supervisor.reopen_intent(self.session_id, self.intent_id, self.why)
        return IntentOutcome(intent_id=self.intent_id, status=status)


class ApprovalOutcome(BaseModel):
    """The outcome of an answer to a waiting tool call."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)
    approval_id: str
    decision: PersonDecision
    turn_id: str | None = None
    """The continued turn; None: other calls still wait, so no turn continued."""
    response: str | None = None
    """The continued turn's reply; None: no turn continued."""
    pending_approval: tuple[str, ...] = ()
    """The continued turn's own requests for approval."""
    error: str | None = None
    """The error of a continued turn that could not do what was asked; None: there was none."""


class AnswerApproval(Operation[ApprovalOutcome]):
    """Allows or refuses a waiting tool call."""

    op = "approval.answer"
    result = TypeAdapter(ApprovalOutcome)
    is_turn = True
    agent_class: str
    approval_id: str
    decision: PersonDecision
    arguments: dict[str, object] | None = None
    answer: Any = None  # any JSON value
    scope: ApprovalScope = "once"
    answered_by: str | None = None
    message: str | None = None

    def deadline_s(self, config: RuntimeConfig) -> float:
        agent = agent_of(config, self.agent_class)
        return config.admin.deadline_s + agent.admission_deadline_s + agent.turn_deadline_s

    async def run(self, root: AdminRoot) -> ApprovalOutcome:
        async with root.open_supervisor(self.agent_class) as supervisor:
            if self.decision == "denied":
                found = await supervisor.deny(self.approval_id, self.message, answered_by=self.answered_by)
            else:
                found = await supervisor.approve(
                    self.approval_id,
                    arguments=self.arguments,
                    answer=self.answer,
                    scope=self.scope,
                    answered_by=self.answered_by,
                    message=self.message,
                )
        done = ApprovalOutcome(approval_id=self.approval_id, decision=self.decision)
        if found is None:
            return done
        error = f"{found.error.kind}: {found.error.message}" if found.error is not None else None
        return done.model_copy(
            update={
                "turn_id": found.turn_id,
                "response": found.response,
                "pending_approval": found.pending_approval,
                "error": error,
            }
        )


class EndSession(Operation[None]):
    """Ends a session after the messages that are already queued."""

    op = "session.end"
    result = TypeAdapter(None)
    agent_class: str
    session_id: str

    async def run(self, root: AdminRoot) -> None:
        async with root.open_supervisor(self.agent_class) as supervisor:
            await supervisor.end_session(self.session_id)


class VoidedEntry(BaseModel):
    """An entry that no longer counts, and the intent or work order that it was about."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")
    entity_id: str
    """The intent or work order."""
    ref: Ref


class VoidEntries(Operation[None]):
    """Records that entries of a session are void."""

    op = "session.void"
    result = TypeAdapter(None)
    agent_class: str
    session_id: str
    """"": the entries name no session."""
    subject_id: str | None
    ledger_id: str
    entries: tuple[VoidedEntry, ...]
    reason: str

    async def run(self, root: AdminRoot) -> None:
        base: CommonPayload = {"v": events.VERSION}
        if self.session_id:
            base["session_id"] = self.session_id
        if self.subject_id is not None:
            base["subject_id"] = self.subject_id
        made = []
        for each in self.entries:
            fields: LifecycleVoidedPayload = {"ref": each.ref.as_mapping(), "reason": self.reason}
            made.append(LedgerEntry(events.LIFECYCLE_VOIDED, each.entity_id, {**base, **fields}))
        await root.append(self.agent_class, self.session_id, self.ledger_id, made)


class ImportSession(Operation[SessionImport]):
    """Adds an exported session."""

    op = "session.import"
    result = TypeAdapter(SessionImport)
    folder: AbsolutePath
    public_key: str | None = None

    async def run(self, root: AdminRoot) -> SessionImport:
        return await root.import_session(self.folder, self.public_key)


class ImportConversations(Operation[ConversationsImport]):
    """Imports conversations of other programs as sessions."""

    op = "session.import_conversations"
    result = TypeAdapter(ConversationsImport)
    file: AbsolutePath
    subject_id: str
    agent_class: str
    dry_run: bool = False

    async def run(self, root: AdminRoot) -> ConversationsImport:
        return await root.import_conversations(self.file, self.subject_id, self.agent_class, dry_run=self.dry_run)


class EraseSubject(Operation[ErasureReport]):
    """Destroys a subject's key, and deletes what was derived from what the subject said."""

    op = "subject.erase"
    result = TypeAdapter(ErasureReport)
    subject_id: str

    async def run(self, root: AdminRoot) -> ErasureReport:
        return await root.erase_subject(self.subject_id)


class SubjectMemoryChange(BaseModel):
    """The result of a change of a subject's memory."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)
    is_written: bool
    """Whether something was written; False: the change was already on record."""
    target: str
    """The artifact, signal or event."""
    withdrawn: tuple[Overlay, ...] = ()
    """The artifacts that the change deactivated."""


class DeactivateArtifact(Operation[SubjectMemoryChange]):
    """Withdraws a learned line: later turns do not see it."""

    op = "memory.deactivate"
    result = TypeAdapter(SubjectMemoryChange)
    agent_class: str
    subject_id: str
    artifact_id: str
    reason: str
    block: bool = False
    """Whether nothing may be learned from its signal again."""

    async def run(self, root: AdminRoot) -> SubjectMemoryChange:
        namespace = memory_namespace(self.agent_class, self.subject_id)
        async with root.open_memory(self.agent_class) as memory:
            subject, cut = await memory.snapshot(namespace=namespace)
            overlay = subject.overlay(self.artifact_id, cut)
            if overlay is None:
                raise UnknownArtifact(self.artifact_id, namespace)
            if overlay.artifact_id is None:
                raise CallerError(
                    f"{quoted(self.artifact_id)} is recorded in the older format, without an artifact id; it cannot be"
                    " deactivated, and its weight decays"
                )
            is_blocked = subject.gate(overlay.signal_id, cut, memory.config).reason == "blocked"
            if not overlay.enabled and (is_blocked or not self.block):
                # A second record could weaken the first one: without `block` it would lift a block.
                return SubjectMemoryChange(is_written=False, target=self.artifact_id)
            now = iso_of(root.clock.time_us())
            await memory.deactivate_overlay(self.artifact_id, self.reason, now, block=self.block, namespace=namespace)
            await memory.commit()
        return SubjectMemoryChange(is_written=True, target=self.artifact_id, withdrawn=(overlay,))


class QuarantineTarget(Operation[SubjectMemoryChange]):
    """Puts a signal or an event in quarantine, so that it no longer counts."""

    op = "memory.quarantine"
    result = TypeAdapter(SubjectMemoryChange)
    agent_class: str
    subject_id: str
    target: str
    """A normalised signal id, or `EVT-…`."""
    reason: str

    async def run(self, root: AdminRoot) -> SubjectMemoryChange:
        namespace = memory_namespace(self.agent_class, self.subject_id)
        async with root.open_memory(self.agent_class) as memory:
            subject, cut = await memory.snapshot(namespace=namespace)
            target = subject.in_words(self.target)
            if target in subject.quarantined(cut):
                return SubjectMemoryChange(is_written=False, target=target)
            lost = await memory.quarantine(target, self.reason, namespace=namespace)
            await memory.commit()
        return SubjectMemoryChange(is_written=True, target=target, withdrawn=tuple(lost))


class ImportOverlays(Operation[dict[str, list[str]]]):
    """Imports lines that were learned elsewhere. Returns the ids of the new overlays by subject."""

    op = "memory.import"
    result = TypeAdapter(dict[str, list[str]])
    agent_class: str
    overlays: dict[str, list[dict[str, object]]]
    """Overlays by subject, each checked."""

    async def run(self, root: AdminRoot) -> dict[str, list[str]]:
        taken: dict[str, list[str]] = {}
        async with root.open_memory(self.agent_class) as memory:
            for subject_id in sorted(self.overlays):
                namespace = memory_namespace(self.agent_class, subject_id)
                ids = await memory.import_overlays(self.overlays[subject_id], namespace=namespace)
                if ids:
                    taken[subject_id] = ids
            await memory.commit()
        return taken


class CleanContent(Operation[tuple[Path, ...]]):
    """Removes the stored images and files that no entry names, and returns them."""

    op = "content.clean"
    result = TypeAdapter(tuple[Path, ...])

    async def run(self, root: AdminRoot) -> tuple[Path, ...]:
        return await root.clean_content()


class ReadStatistics(Operation[RuntimeStatistics]):
    """Reads the present state of the queues."""

    op = "statistics"
    result = TypeAdapter(RuntimeStatistics)
    is_read_only = True

    def deadline_s(self, config: RuntimeConfig) -> float:
        return min(5.0, config.admin.deadline_s)  # the process only reads counters

    async def run(self, root: AdminRoot) -> RuntimeStatistics:
        return root.statistics()


_KINDS: Final[tuple[type[Operation[Any]], ...]] = (
    DeclareIntent,
    ForkIntent,
    ChangeIntent,
    AnswerApproval,
    EndSession,
    VoidEntries,
    ImportSession,
    ImportConversations,
    EraseSubject,
    DeactivateArtifact,
    QuarantineTarget,
    ImportOverlays,
    CleanContent,
    ReadStatistics,
)
OPERATIONS: Final[Mapping[str, type[Operation[Any]]]] = {each.op: each for each in _KINDS}
"""Every operation by its name in a request."""


def parse_operation(name: str, args: Mapping[str, object]) -> Operation[Any]:
    """Parses the operation in a request.

    Raises:
        AdminUnavailable: there is no such operation, or its arguments do not fit
    """
    kind = OPERATIONS.get(name)
    if kind is None:
        raise AdminUnavailable(
            f"the running process knows no operation {name!r}; it knows {', '.join(OPERATIONS)}. Nothing was done"
        )
    try:
        return kind.model_validate(args)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "args"
        raise AdminUnavailable(f"{name}: {where}: {first['msg']}; nothing was done") from error
