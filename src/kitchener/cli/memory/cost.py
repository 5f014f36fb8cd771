"""Turns recorded work orders into the cost of each learned line: to learn it, and to show it."""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Final, NamedTuple

from kitchener.cli.memory.agent_memory import AgentMemory
from kitchener.cli.terminal.output import table_lines
from kitchener.inspection.memory_views import LineState, learned_views, line_text
from kitchener.ledger import LedgerReader, StoredEntry
from kitchener.memory import MemoryReader, Overlay
from kitchener.plain_names import counted
from kitchener.records import events
from kitchener.records.entries import OverlayPayload, WorkOrderCompletedPayload, WorkOrderPlannedPayload, payload_as
from kitchener.records.index_keys import CONSOLIDATIONS_KEY, bias_index_key
from kitchener.records.tokens import estimate_tokens

_TYPES: Final = (events.WO_PLANNED, events.WO_COMPLETED, events.WO_FAILED)
_WIDTH: Final = 60
_COLUMNS: Final = ("artifact", "subject", "state", "line_tokens", "turns", "calls", "tokens_shown", "learning_tokens", "line")


class Learning(NamedTuple):
    """Identifies the sources of an overlay. The plan of its consolidation has the same three facts."""

    namespace: str
    signal_id: str
    """The signal's id in the form that ledgers store."""
    gate_ts: str


@dataclass(frozen=True, slots=True)
class LineCost:
    """The cost of one learned line."""

    line_tokens: int
    """Tokens of the line, estimated by the agent class's `token_estimator`."""
    turns: int
    """Number of turns in which a model was shown it."""
    calls: int
    """Number of model calls that contained it, without calls of a work order that a crash cut off."""
    consolidations: int
    """Number of work orders that tried to learn it, including failed ones in the same window; 0: it was imported."""
    consolidation_input_tokens: int
    consolidation_output_tokens: int

    @property
    def tokens_shown(self) -> int:
        """Tokens that all calls together spent on the line."""
        return self.line_tokens * self.calls

    def as_json(self) -> dict[str, int]:
        return {**asdict(self), "tokens_shown": self.tokens_shown}

    def line(self) -> str:
        """All figures as text."""
        shown = (
            f"shown {self.line_tokens} tokens in {counted(self.calls, 'model call')}: {self.tokens_shown:,} tokens (estimated)"
        )
        if not self.consolidations:
            return f"{shown}; no consolidation on record"
        learned = f"{self.consolidation_input_tokens:,} tokens in and {self.consolidation_output_tokens:,} out"
        return f"{shown}; learned with {learned} in {counted(self.consolidations, 'consolidation')}"


class WorkOrderCosts:
    """The cost of work orders that were shown a line or learned one. Entries must be added in order: plans before ends."""

    def __init__(self) -> None:
        self._shown: dict[tuple[str, str], list[tuple[str, object]]] = defaultdict(list)
        """The work orders that were shown a line, each with its turn, by subject and artifact."""
        self._learned: dict[Learning, set[str]] = defaultdict(set)
        """The sessions of consolidations, by what they learned from."""
        self._calls: dict[str, int] = {}
        """Number of model calls of each work order that was shown a line."""
        self._spent: dict[str, dict[str, tuple[int, int]]] = {}
        """Tokens in and out, by session of a consolidation and work order."""

    def add(self, entry: StoredEntry) -> None:
        """Adds an entry of the supervisor's ledger."""
        payload = events.read_payload(entry.entry_type, entry.payload)
        if entry.entry_type == events.WO_PLANNED:
            self._plan(entry, payload_as(WorkOrderPlannedPayload, payload))
            return
        cost = payload_as(WorkOrderCompletedPayload, payload).get("cost")
        if not isinstance(cost, dict):
            return
        if entry.entity_id in self._calls:
            self._calls[entry.entity_id] = cost["llm_calls"]
        elif (session := self._spent.get(entry.session_id or "")) is not None:
            session[entry.entity_id] = (cost["input_tokens"], cost["output_tokens"])

    def _plan(self, entry: StoredEntry, plan: WorkOrderPlannedPayload) -> None:
        consolidates, attention = plan.get("consolidates"), plan.get("attention")
        if consolidates is not None:
            session_id = str(entry.session_id)
            about = Learning(consolidates["namespace"], consolidates["signal_id"], consolidates["gate_ts"])
            self._learned[about].add(session_id)
            self._spent.setdefault(session_id, {}).setdefault(entry.entity_id, (0, 0))
        for artifact_id in attention.get("biases", ()) if attention is not None else ():
            self._calls.setdefault(entry.entity_id, 0)
            self._shown[plan["subject_id"], artifact_id].append((entry.entity_id, plan.get("turn_id")))

    def of(self, subject_id: str, overlay: Overlay, learned: Iterable[Learning], estimator: str) -> LineCost:
        """The cost of a subject's line.

        Args:
            subject_id: the subject
            overlay: the line
            learned: the sources of the line's recorded overlays
            estimator: name of the token estimator
        """
        shown = self._shown.get((subject_id, overlay.key), [])
        sessions = {session for each in learned for session in self._learned.get(each, ())}
        spent = [tokens for session in sorted(sessions) for tokens in self._spent[session].values()]
        return LineCost(
            line_tokens=estimate_tokens(overlay.line, estimator),
            turns=len({turn for _, turn in shown if turn is not None}),
            calls=sum(self._calls[wo_id] for wo_id in {wo_id for wo_id, _ in shown}),
            consolidations=len(spent),
            consolidation_input_tokens=sum(tokens for tokens, _ in spent),
            consolidation_output_tokens=sum(tokens for _, tokens in spent),
        )

    def without_result(self, learned: Iterable[Learning], namespace: str | None) -> "FruitlessCost":
        """The cost of the consolidations from which nothing was learned, not even by a later attempt in the same window.

        Args:
            learned: the sources of all overlays
            namespace: only consolidations of this namespace; None: all
        """
        known = set(learned)
        fruitless = [each for each in self._learned if each not in known and namespace in (None, each.namespace)]
        sessions = {session for each in fruitless for session in self._learned[each]}
        sessions -= {session for each in known for session in self._learned.get(each, ())}  # a line's own cost has these
        spent = [tokens for session in sorted(sessions) for tokens in self._spent[session].values()]
        return FruitlessCost(len(spent), sum(tokens for tokens, _ in spent), sum(tokens for _, tokens in spent))


class FruitlessCost(NamedTuple):
    """The cost of consolidations that failed, and of those that run."""

    consolidations: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def line(self) -> str:
        """The figures as text."""
        tokens = f"{self.input_tokens:,} tokens in and {self.output_tokens:,} out"
        count = counted(self.consolidations, "consolidation")
        return f"{count} without a result: {tokens}; `kitchener memory signals` says why any failed"


def learning_of(entry: StoredEntry) -> Learning:
    """The sources of a recorded overlay."""
    overlay = payload_as(OverlayPayload, entry.payload)
    return Learning(overlay["namespace"], overlay["signal_id"], overlay.get("window_end") or "")


async def costs_of(ho2m: LedgerReader, subject_id: str, artifact_id: str, learned: Iterable[Learning]) -> WorkOrderCosts:
    """The costs of the work orders behind one line; no scan of the ledger is needed."""
    costs, wanted = WorkOrderCosts(), set(learned)
    async for entry in ho2m.read(key=bias_index_key(subject_id, artifact_id)):
        costs.add(entry)
        async for end in ho2m.read(session_id=entry.session_id, entity_id=entry.entity_id, entry_type=_TYPES[1:]):
            costs.add(end)
    async for entry in ho2m.read(key=CONSOLIDATIONS_KEY):
        about = payload_as(WorkOrderPlannedPayload, entry.payload).get("consolidates")
        if about is not None and Learning(about["namespace"], about["signal_id"], about["gate_ts"]) in wanted:
            async for each in ho2m.read(session_id=entry.session_id, entry_type=_TYPES):
                costs.add(each)
    return costs


class CostRow(NamedTuple):
    """One line of the table."""

    subject_id: str
    overlay: Overlay
    state: LineState
    cost: LineCost

    def as_json(self) -> dict[str, object]:
        facts = {"artifact_id": self.overlay.key, "subject_id": self.subject_id, "state": self.state, "line": self.overlay.line}
        return {**facts, **self.cost.as_json()}

    def as_row(self) -> dict[str, object]:
        """The row as columns of a printed table."""
        spent = self.cost.consolidation_input_tokens + self.cost.consolidation_output_tokens
        return {
            **self.cost.as_json(),
            "artifact": self.overlay.key,
            "subject": self.subject_id,
            "state": self.state,
            "learning_tokens": spent if self.cost.consolidations else None,
            "line": line_text(self.overlay, _WIDTH),
        }


@dataclass(frozen=True, slots=True)
class CostTable:
    """The cost of all learned lines, the most expensive first."""

    agent_class: str
    subject_id: str | None
    """The only subject that it is about; None: it is about all."""
    rows: list[CostRow]
    fruitless: FruitlessCost

    def totals(self) -> dict[str, int]:
        """The sums of the costs."""
        names = ("tokens_shown", "consolidation_input_tokens", "consolidation_output_tokens")
        return {name: sum(getattr(row.cost, name) for row in self.rows) for name in names}

    def as_json(self) -> Mapping[str, object]:
        lines = [row.as_json() for row in self.rows]
        fruitless = self.fruitless._asdict()
        return {"agent_class": self.agent_class, "lines": lines, "totals": self.totals(), "without_result": fruitless}

    def lines(self) -> Iterator[str]:
        if not self.rows:
            about = f" about {self.subject_id!r}" if self.subject_id is not None else ""
            yield f"nothing learned yet{about} by {self.agent_class}"
        else:
            yield from self._table()
        if self.fruitless.consolidations:
            yield self.fruitless.line()

    def _table(self) -> Iterator[str]:
        yield from table_lines(_COLUMNS, (row.as_row() for row in self.rows))
        spent = self.totals()
        learning = spent["consolidation_input_tokens"] + spent["consolidation_output_tokens"]
        yield f"{spent['tokens_shown']:,} tokens to show them (estimated), {learning:,} tokens to learn them"


async def cost_table(place: AgentMemory, subject_id: str | None) -> CostTable:
    """The cost of an agent class's learned lines. Scans the supervisor's ledger once.

    Args:
        place: whose memory
        subject_id: only lines about this subject; None: lines about all subjects
    """
    costs, rows = WorkOrderCosts(), list[CostRow]()
    async with place.paths.reader(place.agent_class) as ho2m, place.reader() as reader:
        if reader is None:
            return CostTable(place.agent_class, subject_id, [], FruitlessCost())
        learned = await _learned(reader)
        if ho2m is not None:
            async for entry in ho2m.read(entry_type=_TYPES):
                costs.add(entry)
        estimator = place.paths.agent(place.agent_class).token_estimator
        async for subject, overlay, state in _lines(place, reader, subject_id):
            about = learned.get((place.namespace(subject), overlay.key), [])
            rows.append(CostRow(subject, overlay, state, costs.of(subject, overlay, about, estimator)))
    rows.sort(key=lambda row: (-row.cost.tokens_shown, row.subject_id, row.overlay.key))
    namespace = None if subject_id is None else place.namespace(subject_id)
    fruitless = costs.without_result(chain.from_iterable(learned.values()), namespace)
    return CostTable(place.agent_class, subject_id, rows, fruitless)


async def _learned(reader: MemoryReader) -> Mapping[tuple[str, str], list[Learning]]:
    """The sources of each artifact, by namespace and key."""
    found = defaultdict[tuple[str, str], list[Learning]](list)
    async for entry in reader.overlays.read(entry_type=events.HO3_OVERLAY):
        overlay = payload_as(OverlayPayload, entry.payload)
        found[overlay["namespace"], overlay.get("artifact_id") or overlay["overlay_id"]].append(learning_of(entry))
    return found


async def _lines(
    place: AgentMemory, reader: MemoryReader, subject_id: str | None
) -> AsyncIterator[tuple[str, Overlay, LineState]]:
    known = [each.subject_id for each in await place.subjects(reader) if each.artifact_ids]
    for each in known if subject_id is None else [subject_id]:
        for view in learned_views(*await reader.snapshot(namespace=place.namespace(each)), place.config):
            yield each, view.overlay, view.state
