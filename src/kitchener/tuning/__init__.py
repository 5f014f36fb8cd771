"""Answers questions from recorded sessions: what would other thresholds or routes have done, and what changed a context?

Every module reads the ledgers without a lock and writes nothing.
"""

from kitchener.tuning.gates import GateCheck, GateOutcome, GateSetting, LineFate, Spread, SubjectRecord, grid, simulate
from kitchener.tuning.memory_bisect import BisectQuestion, BisectReport, MemoryChange, bisect, bisection
from kitchener.tuning.prompt_prefixes import CAUSES, BreakCause, PromptPrefix, TurnPrefix, break_causes, session_breaks
from kitchener.tuning.recorded_calls import OWN_MODELS, read_calls
from kitchener.tuning.recorded_gates import GateRecord, read_gate_record
from kitchener.tuning.recorded_prefixes import read_prefixes
from kitchener.tuning.routes import (
    PastAttempt,
    RecordedCall,
    Reroute,
    Rerouted,
    RouteChoice,
    RoutePair,
    Router,
    RouteSummary,
    RouteSums,
    Tokens,
)

__all__ = [
    "CAUSES",
    "OWN_MODELS",
    "BisectQuestion",
    "BisectReport",
    "BreakCause",
    "GateCheck",
    "GateOutcome",
    "GateRecord",
    "GateSetting",
    "LineFate",
    "MemoryChange",
    "PastAttempt",
    "PromptPrefix",
    "RecordedCall",
    "Reroute",
    "Rerouted",
    "RouteChoice",
    "RoutePair",
    "RouteSummary",
    "RouteSums",
    "Router",
    "Spread",
    "SubjectRecord",
    "Tokens",
    "TurnPrefix",
    "bisect",
    "bisection",
    "break_causes",
    "grid",
    "read_calls",
    "read_gate_record",
    "read_prefixes",
    "session_breaks",
    "simulate",
]
