"""Kitchener: an asynchronous, actor-style runtime for LLM agents whose every decision can be explained, audited and replayed.

async with open_runtime() as runtime:
    supervisor = runtime.supervisor("ADMIN")
    result = await supervisor.handle_turn("hello")
    print(result.response)
"""

import importlib
from typing import Any

_PLACES = {
    "kitchener.actors.attention": (
        "AttentionContext",
        "AttentionRetriever",
        "ContextFragment",
        "ContextProvider",
    ),
    "kitchener.actors.budget": ("TokenBudgeter",),
    "kitchener.actors.executor": ("HO1Executor",),
    "kitchener.actors.quality": (
        "QualityGate",
        "QualityGateResult",
    ),
    "kitchener.actors.sessions": ("SessionManager",),
    "kitchener.actors.supervisor": ("HO2Supervisor",),
    "kitchener.actors.tools": (
        "ToolCall",
        "tool",
    ),
    "kitchener.actors.turn_parts": ("DegradedCall",),
    "kitchener.config": (
        "HO2Config",
        "HO3MemoryConfig",
        "LedgerConfig",
        "LimitsConfig",
        "ProviderConfig",
        "Route",
        "RouterConfig",
        "RuntimeConfig",
    ),
    "kitchener.errors": (
        "CallerError",
        "ConfigError",
        "InvalidLifecycle",
        "InvalidSignal",
        "InvalidTimestamp",
        "KitchenerError",
        "LedgerDamaged",
        "LedgerError",
        "LedgerLocked",
        "OverlayRefused",
        "Overloaded",
        "ProvenanceError",
        "ProviderError",
        "SessionBusy",
        "SessionEnded",
        "SessionMismatch",
        "SubjectErased",
        "TurnReplaced",
        "TurnTimeout",
        "UnknownArtifact",
        "UnknownSession",
        "UnknownSubject",
    ),
    "kitchener.gateway": ("LLMGateway",),
    "kitchener.ledger": (
        "LedgerClient",
        "LedgerEntry",
        "Ledgers",
        "compute_trace_hash",
    ),
    "kitchener.memory": (
        "GateResult",
        "HO3Memory",
        "Overlay",
        "SignalAccumulator",
        "compute_artifact_id",
        "select_biases",
    ),
    "kitchener.records.prompt": (
        "PromptGateway",
        "PromptRequest",
        "PromptResponse",
        "Provider",
        "Usage",
    ),
    "kitchener.records.ref": ("Ref",),
    "kitchener.records.turn": (
        "TextDelta",
        "TextRetracted",
        "ToolRan",
        "TurnCompleted",
        "TurnError",
        "TurnResult",
        "TurnUpdate",
        "WorkOrderFinished",
        "WorkOrderPlanned",
    ),
    "kitchener.records.work_order": (
        "HO1ExecutorProtocol",
        "WorkOrder",
    ),
    "kitchener.replaying": (
        "ReplayDivergence",
        "ReplayReport",
        "replay_session",
    ),
    "kitchener.runtime": (
        "ErasureReport",
        "Runtime",
        "erase_subject",
        "open_runtime",
        "tune_gc",
    ),
}
"""Where each public name is defined. `__init__.pyi` says the same to type checkers."""
_HOMES = {name: place for place, names in _PLACES.items() for name in names}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    # Imported when it is first asked for: all of Kitchener takes long enough for a command's user to press Ctrl-C meanwhile.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
