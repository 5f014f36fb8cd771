"""Asks the record what other settings would have come to: thresholds of the gate, routes of the gateway, and what a line came from."""

from kitchener.tuning.gates import Check, Fate, GateOutcome, Setting, Spread, SubjectRecord, grid, simulate
from kitchener.tuning.signals import GateRecord, read_gate_record

__all__ = [
    "Check",
    "Fate",
    "GateOutcome",
    "GateRecord",
    "Setting",
    "Spread",
    "SubjectRecord",
    "grid",
    "read_gate_record",
    "simulate",
]
