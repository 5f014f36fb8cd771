"""Asks the record: what would other thresholds have learned, where would other routes have led, what changed a projection?"""

from kitchener.tuning.bisection import bisection
from kitchener.tuning.calls import OWN_MODELS, read_calls
from kitchener.tuning.gates import Check, Fate, GateOutcome, Setting, Spread, SubjectRecord, grid, simulate
from kitchener.tuning.projections import BisectReport, Change, Question, bisect
from kitchener.tuning.route_sums import RouteSummary, Way
from kitchener.tuning.routes import Choice, RecordedCall, Reroute, Rerouted, Router, Tokens, Try
from kitchener.tuning.signals import GateRecord, read_gate_record

__all__ = [
    "OWN_MODELS",
    "BisectReport",
    "Change",
    "Check",
    "Choice",
    "Fate",
    "GateOutcome",
    "GateRecord",
    "Question",
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
    "bisect",
    "bisection",
    "grid",
    "read_calls",
    "read_gate_record",
    "simulate",
]
