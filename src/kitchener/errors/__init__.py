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
    ├── Overloaded
    │   └── TurnOverloaded, WaitedTooLong
    ├── TurnTimeout, TurnReplaced
    ├── RuntimeClosed
    │   └── TurnShutDown
    ├── ActorStopped
    ├── AdminUnavailable, AdminRefused, AdminUnanswered
    ├── LedgerError
    │   ├── LedgerDamaged
    │   │   └── LedgerTailMissing
    │   ├── LedgerLocked, LedgerWriteError, LedgerClosed, LedgerClockError
    │   ├── LedgerPathError
    │   │   └── LedgerDiskError
    │   ├── EntryRefused, EntryTooLarge, EventVersionError, PartDamaged
    │   └── CommitUnknown, StaleHead
    ├── FolderDamaged
    ├── SealingError, SigningError
    └── PromptError, ToolError, ProviderError, ExecutorError

Callers catch `KitchenerError` for all of them. Each error carries its facts as attributes; its text names the thing, the
value and the remedy.
"""

from kitchener.errors.caller_errors import (
    ApprovalAnswered,
    ApprovalVoid,
    CallerError,
    IdempotencyConflict,
    InvalidLifecycle,
    InvalidMessage,
    InvalidOutput,
    InvalidPart,
    InvalidSignal,
    InvalidTimestamp,
    InvalidTransition,
    OutcomeUnknown,
    OverlayRefused,
    ProvenanceError,
    ReentrantTurn,
    SessionBusy,
    SessionEnded,
    SessionExists,
    SessionMismatch,
    SubjectErased,
    UnknownApproval,
    UnknownArtifact,
    UnknownSession,
    UnknownSubject,
    UnsupportedPart,
)
from kitchener.errors.ledger_errors import (
    CommitUnknown,
    EntryRefused,
    EntryTooLarge,
    EventVersionError,
    LedgerClockError,
    LedgerClosed,
    LedgerDamaged,
    LedgerDiskError,
    LedgerError,
    LedgerLocked,
    LedgerPathError,
    LedgerTailMissing,
    LedgerWriteError,
    PartDamaged,
    StaleHead,
)
from kitchener.errors.root import (
    RETRYABLE_REASONS,
    ActorStopped,
    AdminRefused,
    AdminUnanswered,
    AdminUnavailable,
    ConfigError,
    ExecutorError,
    FolderDamaged,
    KitchenerError,
    NotOnRecord,
    Overloaded,
    PromptError,
    ProviderError,
    ProviderReason,
    RuntimeClosed,
    SealingError,
    SigningError,
    ToolError,
    TurnOverloaded,
    TurnReplaced,
    TurnShutDown,
    TurnTimeout,
    WaitedTooLong,
)

__all__ = [
    "RETRYABLE_REASONS",
    "ActorStopped",
    "AdminRefused",
    "AdminUnanswered",
    "AdminUnavailable",
    "ApprovalAnswered",
    "ApprovalVoid",
    "CallerError",
    "CommitUnknown",
    "ConfigError",
    "EntryRefused",
    "EntryTooLarge",
    "EventVersionError",
    "ExecutorError",
    "FolderDamaged",
    "IdempotencyConflict",
    "InvalidLifecycle",
    "InvalidMessage",
    "InvalidOutput",
    "InvalidPart",
    "InvalidSignal",
    "InvalidTimestamp",
    "InvalidTransition",
    "KitchenerError",
    "LedgerClockError",
    "LedgerClosed",
    "LedgerDamaged",
    "LedgerDiskError",
    "LedgerError",
    "LedgerLocked",
    "LedgerPathError",
    "LedgerTailMissing",
    "LedgerWriteError",
    "NotOnRecord",
    "OutcomeUnknown",
    "OverlayRefused",
    "Overloaded",
    "PartDamaged",
    "PromptError",
    "ProvenanceError",
    "ProviderError",
    "ProviderReason",
    "ReentrantTurn",
    "RuntimeClosed",
    "SealingError",
    "SessionBusy",
    "SessionEnded",
    "SessionExists",
    "SessionMismatch",
    "SigningError",
    "StaleHead",
    "SubjectErased",
    "ToolError",
    "TurnOverloaded",
    "TurnReplaced",
    "TurnShutDown",
    "TurnTimeout",
    "UnknownApproval",
    "UnknownArtifact",
    "UnknownSession",
    "UnknownSubject",
    "UnsupportedPart",
    "WaitedTooLong",
]


def _name_as_imported() -> None:
    """Lets a traceback name each error as programs import it."""
    for name in __all__:
        if isinstance(found := globals()[name], type):
            found.__module__ = __name__


_name_as_imported()
