"""Asks the record: what would other thresholds have learned, where would other routes have led, what changed a projection?"""

from kitchener.tuning.calls import OWN_MODELS, read_calls
from kitchener.tuning.gates import Check, Fate, GateOutcome, Setting, Spread, SubjectRecord, grid, simulate
from kitchener.tuning.routes import Choice, RecordedCall, Reroute, Rerouted, Router, RouteSummary, Tokens, Try, Way
from kitchener.tuning.signals import GateRecord, read_gate_record

__all__ = [
    "OWN_MODELS",
    "Check",
    "Choice",
    "Fate",
    "GateOutcome",
    "GateRecord",
    "RecordedCall",
    "Reroute",
    "Rerouted",
    "RouteSummary",
    "Router",
    "Setting",
    "Spread",
    "SubjectRecord",
    "Tokens",
    "Try",
    "Way",
    "grid",
    "read_calls",
    "read_gate_record",
    "simulate",
]
