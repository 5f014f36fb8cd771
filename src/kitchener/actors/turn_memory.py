"""What a turn does with long-term memory: recall before it answers, learn from what the subject did afterwards.

It asks the memory by READ and LOG and decides nothing by itself: which lines speak is `select_biases`, which signals a turn
gives is `plan.py`. A memory that fails costs the turn what it would have remembered, never its reply. Explained in
`docs/memory.md`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import structlog

from kitchener.actors.attention.retriever import ContextFragment
from kitchener.actors.work.budget import estimate_tokens
from kitchener.config import HO2Config, HO3MemoryConfig
from kitchener.errors import InvalidSignal
from kitchener.ids import memory_namespace
from kitchener.ledger import Ledgers
from kitchener.memory.bias import select_biases
from kitchener.memory.gate import GateResult
from kitchener.memory.overlays import Overlay
from kitchener.memory.signals import RecordedEvent, SignalAccumulator, event_id, normalise, normalise_value
from kitchener.records.ref import Ref

logger = structlog.get_logger(__name__)


class LongTermMemory(Protocol):
    """What HO2 sees of the memory; `HO3Memory` is one. What each method means and raises is said there."""

    config: HO3MemoryConfig

    @property
    def last_logged_ts(self) -> str:
        """ISO time of the newest signal entry."""
        ...

    async def log_signal(
        self,
        signal_id: str,
        session_id: str,
        event_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        namespace: str,
    ) -> str:
        """Logs one event."""
        ...

    def stored_id(self, signal_id: str, *, namespace: str) -> str:
        """A signal's id as a ledger may hold it."""
        ...

    async def check_gate(
        self, signal_id: str, as_of_ts: str | None = None, *, up_to: Mapping[str, int] | None = None, namespace: str
    ) -> GateResult:
        """Whether a signal is ready to be learned from."""
        ...

    async def read_active_biases(
        self, as_of_ts: str | None = None, *, up_to: Mapping[str, int] | None = None, namespace: str
    ) -> list[Overlay]:
        """What was learned and still speaks."""
        ...

    async def read_overlays(self, signal_id: str | None = None, active_only: bool = True, *, namespace: str) -> list[Overlay]:
        """What was learned."""
        ...

    async def read_signals(
        self,
        signal_id: str | None = None,
        min_count: int = 0,
        as_of_ts: str | None = None,
        *,
        up_to: Mapping[str, int] | None = None,
        namespace: str,
    ) -> list[SignalAccumulator]:
        """What recurs."""
        ...

    async def read_events(
        self,
        event_ids: Iterable[str],
        as_of_ts: str | None = None,
        *,
        up_to: Mapping[str, int] | None = None,
        namespace: str,
    ) -> list[RecordedEvent]:
        """Events with what came beside them."""
        ...

    async def read_refs(self, keys: Iterable[str], *, namespace: str) -> Mapping[str, tuple[Ref, str]]:
        """The entries of artifacts, with their times."""
        ...

    async def log_overlay(self, overlay: Overlay | Mapping[str, Any], *, namespace: str) -> str:
        """Logs what was learned."""
        ...

    async def last_turn_id(self, session_id: str) -> str | None:
        """The turn of a session's newest signal."""
        ...


class Learned(NamedTuple):
    """What a turn added to the memory, and what the gates said to it."""

    candidates: tuple[str, ...]
    """Signals whose gate is open, as the ledgers hold their ids."""
    gate_ts: str | None
    """The moment as of which the gates were read: the turn's last signal entry; None: it gave no signal."""
    positions: Mapping[str, int]
    """The places up to which they were read."""


class Crossed(NamedTuple):
    """What a turn found ripe to be learned from."""

    namespace: str
    """Whose."""
    gate_ts: str
    """As of which moment."""


@dataclass(frozen=True, slots=True)
class TurnMemory:
    """The memory, as the turns of one agent class use it."""

    memory: LongTermMemory
    ledgers: Ledgers
    agent_class: str
    config: HO2Config
    kinds: frozenset[str]
    """The kinds of signals there are."""

    def namespace_of(self, subject_id: str) -> str:
        """Where a subject's memory is."""
        return _namespace(self.agent_class, subject_id)

    async def recall(
        self, subject_id: str, labels: Mapping[str, str], turn_ts: str, positions: Mapping[str, int]
    ) -> Sequence[Overlay]:
        """The learned lines that speak in a turn, best first, as of its start."""
        namespace = self.namespace_of(subject_id)
        active = await self.memory.read_active_biases(turn_ts, up_to=positions, namespace=namespace)
        if not active:
            return ()
        by_key = {overlay.key: overlay for overlay in active}
        wanted = {kind: _both_spellings(label) for kind, label in labels.items()}
        chosen = select_biases([each.as_mapping() for each in active], wanted, self.config.ho3_bias_budget, turn_ts)
        return [by_key[each["artifact_id"] or each["overlay_id"]] for each in chosen]

    async def refs_of(self, subject_id: str, keys: Sequence[str]) -> Mapping[str, tuple[Ref, str]]:
        """The entries of learned lines, by artifact id."""
        return await self.memory.read_refs(keys, namespace=self.namespace_of(subject_id))

    async def learn(self, session_id: str, subject_id: str, turn_id: str, signal_ids: Sequence[str]) -> Learned:
        """Logs the signals of a turn, then reads the gate of each, which sees them."""
        namespace, counted = self.namespace_of(subject_id), dict[str, int]()
        for raw in signal_ids:
            try:
                signal_id = normalise(raw, self.kinds)
            except InvalidSignal as error:
                # Not what it was: a label may be the very words of what was said.
                logger.info("signal dropped", turn_id=turn_id, reason=error.expected)
                continue
            n = counted[signal_id] = counted.get(signal_id, 0) + 1
            event = event_id(session_id, turn_id, self.memory.stored_id(signal_id, namespace=namespace), n)
            await self.memory.log_signal(signal_id, session_id, event, {"turn_id": turn_id}, namespace=namespace)
        positions = self.ledgers.positions()
        if not counted:
            return Learned((), None, positions)
        gate_ts = self.memory.last_logged_ts
        gates = [
            await self.memory.check_gate(signal_id, gate_ts, up_to=positions, namespace=namespace) for signal_id in counted
        ]
        crossed = (self.memory.stored_id(gate.signal_id, namespace=namespace) for gate in gates if gate.crossed)
        return Learned(tuple(crossed), gate_ts, positions)


_namespace = lru_cache(4_096)(memory_namespace)  # a turn asks three times


def _both_spellings(label: str) -> tuple[str, ...]:
    """A label as the model gave it, and as it stands in signals, from which the labels of artifacts may be taken."""
    return tuple(dict.fromkeys(filter(None, (label, normalise_value(label)))))


def bias_fragments(overlays: Sequence[Overlay], estimator: str) -> tuple[ContextFragment, ...]:
    """The learned lines as pieces of context; their text stands beside the gathered one."""
    return tuple(
        ContextFragment(BIAS, overlay.key, overlay.line, estimate_tokens(overlay.line, estimator)) for overlay in overlays
    )


BIAS = "HO3M"
"""The source of a learned line among the fragments of a context."""
