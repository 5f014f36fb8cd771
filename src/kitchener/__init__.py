"""Kitchener: an asynchronous, actor-style runtime for LLM agents whose every decision can be explained, audited and replayed.

async with open_runtime() as runtime:
    supervisor = runtime.supervisor("ADMIN")
    result = await supervisor.handle_turn("hello")
    print(result.response)

Here is what an application uses, and the errors that it tells apart; the rest is in `kitchener.actors`, `config`, `errors`,
`gateway`, `ledger`, `memory`, `replaying`, `runtime` and `testing`. `docs/tutorial.md` begins at the beginning.
"""

import importlib
import warnings
from typing import Any, Final

from kitchener.lazy_names import homes_in

# Imported on first use: importing all of Kitchener takes so long that a user may press Ctrl-C in between.
_HOMES = homes_in(__file__)
_VERSION: Final = "__version__"
__all__ = sorted(_HOMES, key=lambda name: (not name[0].isupper(), name))

_MOVED_TO: Final = {
    "kitchener.actors": "AttentionContext AttentionRetriever ContextFragment ContextProvider DegradedCall HO1Executor"
    " HO1ExecutorProtocol QualityGate QualityGateResult SessionManager TokenBudgeter WorkOrder",
    "kitchener.config": "HO3MemoryConfig LedgerConfig LimitsConfig ProviderConfig Route RouterConfig",
    "kitchener.errors": "IdempotencyConflict InvalidLifecycle InvalidMessage InvalidSignal InvalidTimestamp LedgerDamaged"
    " LedgerLocked NotOnRecord OverlayRefused PromptError ProvenanceError ProviderError ReentrantTurn"
    " SealingError SessionMismatch SigningError SubjectErased ToolError UnknownArtifact"
    " UnknownSubject",
    "kitchener.gateway": "LLMGateway PromptGateway PromptRequest PromptResponse Provider Usage",
    "kitchener.ledger": "LedgerClient LedgerEntry Ledgers Ref compute_trace_hash",
    "kitchener.memory": "GateResult Overlay SignalAccumulator compute_artifact_id select_biases",
    "kitchener.replaying": "ReplayDivergence ReplayReport",
    "kitchener.runtime": "ErasureReport erase_subject tune_gc",
}
"""Names that were here once, by the package that has them now. They still work, with a warning; version 0.2 drops them."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value
    if name == _VERSION:
        value = globals()[name] = importlib.import_module("importlib.metadata").version("kitchener")
        return value
    for package, names in _MOVED_TO.items():
        if name in names.split():
            text = f"kitchener.{name} has moved: write `from {package} import {name}`"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            return getattr(importlib.import_module(package), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, _VERSION})
