"""Connects a turn to long-term memory: recalls learned lines before the reply, and logs the turn's signals after it.

It uses the memory's READ and LOG and makes no decisions: `select_biases` chooses the lines, `turn_signals.py` the signals. The
turn continues without a memory that fails. Explained in `docs/memory.md`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kitchener.actors.attention.attention_context import ContextFragment
from kitchener.config import HO2Config, HO3MemoryConfig
from kitchener.errors import InvalidSignal
from kitchener.ids import memory_namespace
from kitchener.ledger import Ledger, LedgerGroup
from kitchener.logs import get_logger
from kitchener.memory.bias import select_biases
from kitchener.memory.gate import GateResult
from kitchener.memory.overlays import Overlay
from kitchener.memory.signals import RecordedEvent, SignalAccumulator, normalise, normalise_value
from kitchener.records.ref import Ref
from kitchener.records.tokens import estimate_tokens
from kitchener.records.turn import NO_CANDIDATES, ConsolidationCandidates

logger = get_logger(__name__)


class LongTermMemory(Protocol):
    """The memory's interface for HO2. `HO3Memory` implements it and documents each method and its errors."""

    config: HO3MemoryConfig

    @property
    def ledgers(self) -> tuple[Ledger, ...]:
        """The ledgers that it writes, which a turn's commit must cover."""
        ...

    @property
    def last_logged_ts(self) -> str:
        """ISO time of the newest signal entry."""
        ...

    async def log_turn(self, signal_ids: Iterable[str], session_id: str, turn_id: str, *, namespace: str) -> None:
        """Logs the signals of a turn, all in one entry."""
        ...

    def stored_id(self, signal_id: str, *, namespace: str) -> str:
        """The form of a signal's id that ledgers store."""
        ...

    async def check_gate(
        self, signal_id: str, as_of_ts: str | None = None, *, up_to: Mapping[str, int] | None = None, namespace: str
    ) -> GateResult:
        """Checks the gate of a signal."""
        ...

    async def read_active_biases(
        self, as_of_ts: str | None = None, *, up_to: Mapping[str, int] | None = None, namespace: str
    ) -> list[Overlay]:
        """The active overlays."""
        ...

    async def read_overlays(self, signal_id: str | None = None, active_only: bool = True, *, namespace: str) -> list[Overlay]:
        """The overlays of a signal, or of all signals."""
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
        """The counts of signals."""
        ...

    async def read_events(
        self,
        event_ids: Iterable[str],
        as_of_ts: str | None = None,
        *,
        up_to: Mapping[str, int] | None = None,
        namespace: str,
    ) -> list[RecordedEvent]:
        """Events with the signals that were logged beside them."""
        ...

    async def read_refs(self, keys: Iterable[str], *, namespace: str) -> Mapping[str, tuple[Ref, str]]:
        """The ledger entries of artifacts, with their times."""
        ...

    async def log_overlay(self, overlay: Overlay | Mapping[str, object], *, namespace: str) -> str:
        """Appends a learned line, with its sources, to a namespace. Returns the id of the overlay."""
        ...

    async def last_turn_id(self, session_id: str) -> str | None:
        """The turn id of a session's newest signal; None if the session has none."""
        ...


class OpenGates(NamedTuple):
    """The gates that were open after a turn's signals were logged."""

    namespace: str
    """The memory namespace, `agent_class/subject_id`."""
    signal_ids: tuple[str, ...]
    """Signals whose gate is open, with ids in the form that ledgers store."""
    gate_ts: str | None
    """When the gates were read, ISO time: the time of the turn's last signal entry; None: the turn gave no signal."""
    positions: Mapping[str, int]
    """Ledger positions up to which the gates were read."""

    @property
    def candidates(self) -> ConsolidationCandidates:
        """The signals with their namespace, for a caller."""
        return ConsolidationCandidates.of(self.signal_ids, self.namespace) if self.signal_ids else NO_CANDIDATES


@dataclass(frozen=True, slots=True)
class TurnMemory:
    """The memory operations of the turns of one agent class."""

    memory: LongTermMemory
    ledgers: LedgerGroup
    agent_class: str
    config: HO2Config
    kinds: frozenset[str]
    """The allowed kinds of signals."""

    def namespace_of(self, subject_id: str) -> str:
        """The memory namespace of a subject."""
        return memory_namespace(self.agent_class, subject_id)

    async def recall(
        self, subject_id: str, labels: Mapping[str, str], turn_ts: str, positions: Mapping[str, int]
    ) -> Sequence[Overlay]:
        """Selects the learned lines for a turn, best first, as of the turn's start.

        Args:
            subject_id: the subject
            labels: the turn's labels by kind
            turn_ts: when the turn started, ISO time
            positions: ledger positions up to which the turn may read
        """
        namespace = self.namespace_of(subject_id)
        active = await self.memory.read_active_biases(turn_ts, up_to=positions, namespace=namespace)
        if not active:
            return ()
        wanted = {kind: _both_spellings(label) for kind, label in labels.items()}
        return select_biases(active, wanted, self.config.ho3_bias_budget, turn_ts)

    async def refs_of(self, subject_id: str, keys: Sequence[str]) -> Mapping[str, tuple[Ref, str]]:
        """The ledger entries of learned lines, with their times, by artifact id."""
        return await self.memory.read_refs(keys, namespace=self.namespace_of(subject_id))

    async def learn(self, session_id: str, subject_id: str, turn_id: str, signal_ids: Sequence[str]) -> OpenGates:
        """Logs the signals of a turn, then checks the gate of each signal. The gates count these signals."""
        namespace, given = self.namespace_of(subject_id), list[str]()
        for raw in signal_ids:
            try:
                given.append(normalise(raw, self.kinds))
            except InvalidSignal as error:
                # Logs only the reason, because a label may repeat the user's words.
                logger.info("signal dropped", turn_id=turn_id, reason=error.expected)
        if given:
            await self.memory.log_turn(given, session_id, turn_id, namespace=namespace)
        positions = self.ledgers.positions()
        if not given:
            return OpenGates(namespace, (), None, positions)
        gate_ts = self.memory.last_logged_ts
        gates = [
            await self.memory.check_gate(signal_id, gate_ts, up_to=positions, namespace=namespace)
            for signal_id in dict.fromkeys(given)
        ]
        crossed = (self.memory.stored_id(gate.signal_id, namespace=namespace) for gate in gates if gate.crossed)
        return OpenGates(namespace, tuple(crossed), gate_ts, positions)


def _both_spellings(label: str) -> tuple[str, ...]:
    """A label as the model spells it and as signals spell it, because artifacts may use either."""
    return tuple(dict.fromkeys(filter(None, (label, normalise_value(label)))))


def bias_fragments(overlays: Sequence[Overlay], estimator: str) -> tuple[ContextFragment, ...]:
    """The learned lines as context fragments. A prompt shows them beside the gathered text, not in it."""
    return tuple(
        ContextFragment(BIAS, overlay.key, overlay.line, estimate_tokens(overlay.line, estimator)) for overlay in overlays
    )


BIAS = "HO3M"
"""The `source` of a context fragment that is a learned line."""
