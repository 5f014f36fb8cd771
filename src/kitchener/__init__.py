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
from kitchener.actors.work_order_chain import DegradedCall
from kitchener.config import HO2Config, LedgerConfig, LimitsConfig, ProviderConfig, Route, RouterConfig, RuntimeConfig
from kitchener.errors import (
    CallerError,
    ConfigError,
    KitchenerError,
    LedgerDamaged,
    LedgerError,
    LedgerLocked,
    Overloaded,
    ProviderError,
    SessionBusy,
    SessionEnded,
    SessionMismatch,
    TurnReplaced,
    TurnTimeout,
    UnknownSession,
)
from kitchener.gateway import LLMGateway
from kitchener.ledger import LedgerClient, LedgerEntry, Ledgers, compute_trace_hash
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
from kitchener.runtime import Runtime, open_runtime, tune_gc

__all__ = [
    "AttentionContext",
    "AttentionRetriever",
    "CallerError",
    "ConfigError",
    "ContextFragment",
    "ContextProvider",
    "DegradedCall",
    "HO1Executor",
    "HO1ExecutorProtocol",
    "HO2Config",
    "HO2Supervisor",
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
    "Overloaded",
    "PromptGateway",
    "PromptRequest",
    "PromptResponse",
    "Provider",
    "ProviderConfig",
    "ProviderError",
    "QualityGate",
    "QualityGateResult",
    "Ref",
    "Route",
    "RouterConfig",
    "Runtime",
    "RuntimeConfig",
    "SessionBusy",
    "SessionEnded",
    "SessionManager",
    "SessionMismatch",
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
    "UnknownSession",
    "Usage",
    "WorkOrder",
    "WorkOrderFinished",
    "WorkOrderPlanned",
    "compute_trace_hash",
    "open_runtime",
    "tool",
    "tune_gc",
]
