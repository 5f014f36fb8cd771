"""HO3, the long-term memory: two ledgers with only two operations, READ and LOG. Explained in `docs/memory.md`."""

from kitchener.memory.bias import select_biases
from kitchener.memory.gate import GateResult
from kitchener.memory.overlays import Overlay, compute_artifact_id, gate_window_key
from kitchener.memory.reader import MemoryReader
from kitchener.memory.signals import SignalAccumulator
from kitchener.memory.store import HO3Memory

__all__ = [
    "GateResult",
    "HO3Memory",
    "MemoryReader",
    "Overlay",
    "SignalAccumulator",
    "compute_artifact_id",
    "gate_window_key",
    "select_biases",
]
