"""Where each name of this package is defined: `__init__.py` reads this file, and so do type checkers."""

from kitchener.actors.attention.attention_context import AttentionContext as AttentionContext
from kitchener.actors.attention.attention_context import ContextFragment as ContextFragment
from kitchener.actors.attention.retriever import AttentionRetriever as AttentionRetriever
from kitchener.actors.attention.retriever import ContextProvider as ContextProvider
from kitchener.actors.executor.executor import HO1Executor as HO1Executor
from kitchener.actors.executor.prompts import PromptLibrary as PromptLibrary
from kitchener.actors.sessions.active_session import SessionManager as SessionManager
from kitchener.actors.tools.registry import ToolRegistry as ToolRegistry
from kitchener.actors.tools.tool import Tool as Tool
from kitchener.actors.turn.services import DegradedCall as DegradedCall
from kitchener.actors.work.budget import TokenBudgeter as TokenBudgeter
from kitchener.actors.work.quality import QualityGate as QualityGate
from kitchener.actors.work.quality import QualityGateResult as QualityGateResult
from kitchener.records.work_order import HO1ExecutorProtocol as HO1ExecutorProtocol
from kitchener.records.work_order import WorkOrder as WorkOrder

__all__ = [
    "AttentionContext",
    "AttentionRetriever",
    "ContextFragment",
    "ContextProvider",
    "DegradedCall",
    "HO1Executor",
    "HO1ExecutorProtocol",
    "PromptLibrary",
    "QualityGate",
    "QualityGateResult",
    "SessionManager",
    "TokenBudgeter",
    "Tool",
    "ToolRegistry",
    "WorkOrder",
]
