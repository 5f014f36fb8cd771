"""Kitchener: an asynchronous, actor-style runtime for LLM agents whose every decision can be explained, audited and replayed.

async with open_runtime() as runtime:
    supervisor = runtime.supervisor("ADMIN")
    result = await supervisor.handle_turn("hello")
    print(result.response)
"""

from kitchener.actors.attention import AttentionContext, AttentionRetriever, ContextFragment, ContextProvider
from kitchener.actors.budget import TokenBudgeter
from kitchener.actors.executor import HO1Executor
from kitchener.actors.quality import QualityGate, QualityGateResult
from kitchener.actors.sessions import SessionManager
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.actors.tools import ToolCall, tool
from kitchener.actors.turn_parts import DegradedCall
from kitchener.config import (
    HO2Config,
    HO3MemoryConfig,
    LedgerConfig,
    LimitsConfig,
    ProviderConfig,
    Route,
    RouterConfig,
    RuntimeConfig,
)
from kitchener.errors import (
    CallerError,
    ConfigError,
    InvalidLifecycle,
    InvalidSignal,
    InvalidTimestamp,
    KitchenerError,
    LedgerDamaged,
    LedgerError,
    LedgerLocked,
    OverlayRefused,
    Overloaded,
    ProvenanceError,
    ProviderError,
    SessionBusy,
    SessionEnded,
    SessionMismatch,
    SubjectErased,
    TurnReplaced,
    TurnTimeout,
    UnknownArtifact,
    UnknownSession,
    UnknownSubject,
)
from kitchener.gateway import LLMGateway
from kitchener.ledger import LedgerClient, LedgerEntry, Ledgers, compute_trace_hash
from kitchener.memory import GateResult, HO3Memory, Overlay, SignalAccumulator, compute_artifact_id, select_biases
from kitchener.records.prompt import PromptGateway, PromptRequest, PromptResponse, Provider, Usage
from kitchener.records.ref import Ref
from kitchener.records.turn import (
    TextDelta,
    TextRetracted,
    ToolRan,
    TurnCompleted,
    TurnError,
    TurnResult,
    TurnUpdate,
    WorkOrderFinished,
    WorkOrderPlanned,
)
from kitchener.records.work_order import HO1ExecutorProtocol, WorkOrder
from kitchener.replaying import ReplayDivergence, ReplayReport, replay_session
from kitchener.runtime import ErasureReport, Runtime, erase_subject, open_runtime, tune_gc

__all__ = [
    "AttentionContext",
    "AttentionRetriever",
    "CallerError",
    "ConfigError",
    "ContextFragment",
    "ContextProvider",
    "DegradedCall",
    "ErasureReport",
    "GateResult",
    "HO1Executor",
    "HO1ExecutorProtocol",
    "HO2Config",
    "HO2Supervisor",
    "HO3Memory",
    "HO3MemoryConfig",
    "InvalidLifecycle",
    "InvalidSignal",
    "InvalidTimestamp",
    "KitchenerError",
    "LLMGateway",
    "LedgerClient",
    "LedgerConfig",
    "LedgerDamaged",
    "LedgerEntry",
    "LedgerError",
    "LedgerLocked",
    "Ledgers",
    "LimitsConfig",
    "Overlay",
    "OverlayRefused",
    "Overloaded",
    "PromptGateway",
    "PromptRequest",
    "PromptResponse",
    "ProvenanceError",
    "Provider",
    "ProviderConfig",
    "ProviderError",
    "QualityGate",
    "QualityGateResult",
    "Ref",
    "ReplayDivergence",
    "ReplayReport",
    "Route",
    "RouterConfig",
    "Runtime",
    "RuntimeConfig",
    "SessionBusy",
    "SessionEnded",
    "SessionManager",
    "SessionMismatch",
    "SignalAccumulator",
    "SubjectErased",
    "TextDelta",
    "TextRetracted",
    "TokenBudgeter",
    "ToolCall",
    "ToolRan",
    "TurnCompleted",
    "TurnError",
    "TurnReplaced",
    "TurnResult",
    "TurnTimeout",
    "TurnUpdate",
    "UnknownArtifact",
    "UnknownSession",
    "UnknownSubject",
    "Usage",
    "WorkOrder",
    "WorkOrderFinished",
    "WorkOrderPlanned",
    "compute_artifact_id",
    "compute_trace_hash",
    "erase_subject",
    "open_runtime",
    "replay_session",
    "select_biases",
    "tool",
    "tune_gc",
]
