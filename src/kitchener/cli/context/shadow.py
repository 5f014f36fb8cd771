"""Compares what the Context Authority would have shown in `context_mode = "shadow"` with what attention showed.

The context ledger has the shadow's decisions; the work orders in the supervisor's ledger tell what attention showed. Both are
read as recorded, without a lock. Nothing is decided again. Intents are not compared, because attention shows none.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypedDict

from kitchener.cli.terminal.progress import progress_bar
from kitchener.config.settings_parser import toml_key
from kitchener.context import ProjectionLists, base_ref, read_chain, result_id
from kitchener.errors import NotOnRecord
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.shown_text import UNREADABLE, one_line
from kitchener.inspection.turn_views.recorded_session import read_past
from kitchener.ledger import LedgerReader, StoredEntry
from kitchener.records import events
from kitchener.records.entries import (
    GatheredContext,
    IntentDeclaredPayload,
    OverlayPayload,
    ProjectionPayload,
    QualityGatePayload,
    ShadowDecisionPayload,
    ShadowEvent,
    ToolCallPayload,
    TurnStartedPayload,
    WorkOrderPlannedPayload,
    opened,
    payload_as,
)
from kitchener.records.ref import Ref

MOST_DIFFERENT: Final = 10
"""Number of turns that the report on all sessions shows in full."""
NOTE: Final = (
    "In shadow the classifier is not told the active objective, so the shadow may switch intents more often than enforce would."
)
_NAMED: Final = 8
_WIDTH: Final = 60
_OF_HO2M: Final = (events.TURN_STARTED, events.TURN_COMPLETED, events.WO_PLANNED, events.WO_QUALITY_GATE)
_DECISIONS: Final = (events.PROJECTION_COMPUTED, events.INTENT_SHADOW_DECISION)
_COUNTED: Final = {events.INTENT_DECLARED: "declared", events.INTENT_SUPERSEDED: "switched", events.INTENT_CLOSED: "closed"}


class ShadowTurn(NamedTuple):
    """One turn, as the shadow and attention would show it. Items are named by turn, rule, work order or learned line."""

    turn_id: str
    session_id: str
    message: str
    actions: list[str]
    """The shadow's decisions about the message and the reply. `CONTINUE` is left out if there are others."""
    intent_id: str | None
    objective: str | None
    """The objective of that intent; None: the shadow has not recorded it."""
    shadow_tokens: int
    is_comparable: bool
    """False: no reply was asked for, so attention showed nothing, and the three lists are empty."""
    both: list[str]
    only_shadow: list[str]
    only_attention: list[str]

    @property
    def difference(self) -> int:
        """The number of items that only one of the two shows."""
        return len(self.only_shadow) + len(self.only_attention)


class ShadowSummary(TypedDict):
    """Shares and means over all turns, as `--json` prints them; None where there is nothing to divide by."""

    sessions: int
    turns: int
    comparable: int
    """Number of turns in which attention showed something, too."""
    alike: int
    share_alike: float | None
    mean_only_shadow: float | None
    """Items that only the shadow shows, per turn."""
    mean_only_attention: float | None
    mean_shadow_tokens: float | None
    intents: dict[str, int]
    """Number of times that the shadow declared, switched and closed intents."""


@dataclass(slots=True)
class ShadowReport:
    """The counts of all turns, and the turns that are shown in full."""

    agent_class: str
    session_id: str | None
    """The session; None: all sessions of the class."""
    sessions: int = 0
    turns: int = 0
    told: list[ShadowTurn] = field(default_factory=list)
    """The turns that are shown in full: every turn of one session, in order; of all sessions, those that differ most."""
    _counts: Counter[str] = field(default_factory=Counter)

    def add(self, turns: Iterable[ShadowTurn], decided: Counter[str]) -> None:
        """Adds a session's turns, and how often the shadow declared, switched and closed intents in it."""
        found = list(turns)
        self.sessions += bool(found)
        self.turns += len(found)
        self._counts += decided
        for each in found:
            self._counts["tokens"] += each.shadow_tokens
            if each.is_comparable:
                self._counts["comparable"] += 1
                self._counts["alike"] += not each.difference
                self._counts["only_shadow"] += len(each.only_shadow)
                self._counts["only_attention"] += len(each.only_attention)
        self.told += found if self.session_id is not None else [each for each in found if each.difference]
        if self.session_id is None:
            self.told = sorted(self.told, key=lambda each: (-each.difference, each.turn_id))[:MOST_DIFFERENT]

    def summary(self) -> ShadowSummary:
        """Shares and means; None where there is nothing to divide by."""
        counts = self._counts

        def mean(name: str, of: int) -> float | None:
            return round(counts[name] / of, 3) if of else None

        return {
            "sessions": self.sessions,
            "turns": self.turns,
            "comparable": counts["comparable"],
            "alike": counts["alike"],
            "share_alike": mean("alike", counts["comparable"]),
            "mean_only_shadow": mean("only_shadow", counts["comparable"]),
            "mean_only_attention": mean("only_attention", counts["comparable"]),
            "mean_shadow_tokens": mean("tokens", self.turns),
            "intents": {name: counts[name] for name in _COUNTED.values()},
        }

    def as_json(self) -> dict[str, object]:
        """The output of `context shadow --json`."""
        head = {"agent_class": self.agent_class, "session_id": self.session_id, "summary": self.summary()}
        return {**head, "turns": [each._asdict() for each in self.told], "note": NOTE}

    def lines(self) -> Iterator[str]:
        if not self.turns:
            table = toml_key(("agents", self.agent_class))
            yield f"no turn of {self.session_id or self.agent_class} was decided in shadow"
            yield f'  = help: `context_mode = "shadow"` below [{table}] of kitchener.toml turns it on, for turns after that'
            return
        what = f"session {self.session_id} ({self.agent_class})"
        yield what if self.session_id is not None else f"turns of {self.agent_class} that differ most: {len(self.told)}"
        for each in self.told:
            yield from _turn_lines(each)
        yield from self._summary_lines()

    def _summary_lines(self) -> Iterator[str]:
        found = self.summary()
        yield ""
        yield f"decided in shadow: turns {self.turns:,}, sessions {self.sessions:,}; the lines of intents are not compared"
        if found["comparable"]:
            yield f"  shown alike       {found['alike']:,} of {found['comparable']:,} turns ({found['share_alike']:.0%})"
            yield f"  only the shadow   {found['mean_only_shadow']:,.1f} items a turn"
            yield f"  only attention    {found['mean_only_attention']:,.1f} items a turn"
        yield f"  shadow's tokens   {found['mean_shadow_tokens']:,.0f} a turn; attention's are not on record"
        yield f"  shadow's intents  {', '.join(f'{number:,} {name}' for name, number in found['intents'].items())}"
        yield f"note: {NOTE}"


class _Readers(NamedTuple):
    ho2m: LedgerReader
    context: LedgerReader
    overlays: LedgerReader | None
    ho1m: LedgerReader | None


async def read_shadow(paths: LedgerPaths, preferred: str, session_id: str | None) -> ShadowReport:
    """The report on one session, or on all sessions of an agent class, with a progress bar.

    Raises:
        UnknownSession: no ledger knows the session
        NotOnRecord: a projection refers to one that is not there
        LedgerDamaged: a line does not verify
    """
    if session_id is not None:
        preferred = (await read_past(paths, session_id, preferred)).agent_class
    report = ShadowReport(preferred, session_id)
    async with _open_readers(paths, preferred) as readers:
        if readers is None:
            return report
        if session_id is not None:
            report.add(*await _compare(readers, session_id))
            return report
        found = readers.context.read(entry_type=events.INTENT_SHADOW_DECISION)
        sessions = list({entry.session_id: None async for entry in found if entry.session_id is not None})
        async with progress_bar(f"sessions of {preferred}", len(sessions)) as done:
            for each in sessions:
                report.add(*await _compare(readers, each))
                done.add()
    return report


@asynccontextmanager
async def _open_readers(paths: LedgerPaths, agent_class: str) -> AsyncIterator[_Readers | None]:
    async with AsyncExitStack() as opened:
        ho2m = await opened.enter_async_context(paths.reader(agent_class))
        context = await opened.enter_async_context(paths.reader(agent_class, "context"))
        overlays = await opened.enter_async_context(paths.reader(agent_class, "overlays"))
        ho1m = await opened.enter_async_context(paths.reader(agent_class, "ho1m"))
        yield None if ho2m is None or context is None else _Readers(ho2m, context, overlays, ho1m)


async def _compare(readers: _Readers, session_id: str) -> tuple[list[ShadowTurn], Counter[str]]:
    """A session's turns, in order, and its counts of intents."""
    entries = [entry async for entry in readers.ho2m.read(session_id=session_id, entry_type=_OF_HO2M)]
    decided = [entry async for entry in readers.context.read(session_id=session_id, entry_type=_DECISIONS)]
    shadows: dict[str, list[StoredEntry]] = {}
    goals, counts = dict[str, str](), Counter[str]()
    for entry in decided:
        if entry.entry_type == events.INTENT_SHADOW_DECISION:
            shadows.setdefault(_decision(entry)["turn_id"], []).append(entry)
            for each in _events(entry):
                counts[_COUNTED.get(each["entry_type"], "other")] += 1
                if each["entry_type"] == events.INTENT_DECLARED:
                    goals[each["entity_id"]] = str(payload_as(IntentDeclaredPayload, each["payload"]).get("objective"))
    said = {
        each.entity_id: payload_as(TurnStartedPayload, each.payload).get("user_message")
        for each in entries
        if each.entry_type == events.TURN_STARTED
    }
    shown, names, turns = _attention(entries), {entry.ref: entry.entity_id for entry in entries}, []
    for entry, lists in _projections(decided):
        projection = events.read_as(ProjectionPayload, entry)
        turn_id, intent_id = projection["turn_id"], projection["intent_id"]
        if turn_id is None or projection["mode"] != "shadow":
            continue  # a command's projection, or a turn without a shadow
        visible = [ref for ref in lists.visible if "DEFINES_INTENT" not in lists.why(ref)]
        ours = [await _name(readers, names, ref, lists) for ref in visible]
        attention = shown.get(turn_id)
        refs = [Ref.from_mapping(each) for each in attention["fragment_refs"]] if attention is not None else []
        theirs = [await _name(readers, names, ref, lists) for ref in refs]
        theirs += attention.get("biases", ()) if attention is not None else ours
        message = said.get(turn_id)
        turn = ShadowTurn(
            turn_id,
            session_id,
            message if isinstance(message, str) else UNREADABLE,
            _actions(shadows.get(turn_id, ())),
            intent_id,
            goals.get(intent_id) if intent_id is not None else None,
            projection["tokens_used"],
            attention is not None,
            [name for name in ours if name in theirs] if attention is not None else [],
            [name for name in ours if name not in theirs],
            [name for name in theirs if name not in ours],
        )
        turns.append(turn)
    return turns, counts


def _attention(entries: Sequence[StoredEntry]) -> dict[str, GatheredContext]:
    """The context that attention showed, by turn: for the accepted reply, or for the last attempt if none was accepted."""
    found, gates = dict[str, GatheredContext](), [e for e in entries if e.entry_type == events.WO_QUALITY_GATE]
    accepted = {gate.entity_id for gate in gates if payload_as(QualityGatePayload, gate.payload)["decision"] == "accept"}
    planned = [payload_as(WorkOrderPlannedPayload, e.payload) for e in entries if e.entry_type == events.WO_PLANNED]
    replies = [each for each in planned if each["wo_type"] == "synthesize"]
    for plan in sorted(replies, key=lambda each: each["wo_id"] in accepted):  # stable, so the accepted one comes last
        if (shown := plan.get("attention")) is not None and "fragment_refs" in shown:
            found[plan["turn_id"]] = shown
    return found


def _projections(decided: Iterable[StoredEntry]) -> Iterator[tuple[StoredEntry, ProjectionLists]]:
    """Every projection with its lists written out. Keeps only lists that a later projection may refer to."""
    projected = [entry for entry in decided if entry.entry_type == events.PROJECTION_COMPUTED]
    left, known = Counter(base_ref(entry.payload) for entry in projected), dict[Ref, ProjectionLists]()

    def missing(ref: Ref) -> Mapping[str, object]:
        raise NotOnRecord(f"a projection is recorded as a change of {ref.entry_id}, which is not there")

    for entry in projected:
        lists, base = read_chain(entry.payload, known, missing), base_ref(entry.payload)
        left[base] -= 1
        if base is not None and not left[base]:
            del known[base]
        if left[entry.ref]:
            known[entry.ref] = lists
        yield entry, lists


async def _name(readers: _Readers, names: dict[Ref, str], ref: Ref, lists: ProjectionLists) -> str:
    """The name of an entry's item: a turn, a work order or a learned line; of a standing rule or an erased item, its own id."""
    if ref not in names:
        others = {each.ledger_id: each for each in (readers.ho2m, readers.ho1m) if each is not None}
        reader = readers.overlays if "HO3_BIAS" in lists.why(ref) else others.get(ref.ledger_id)
        entry = await reader.find(ref) if reader is not None and ref.ledger_id == reader.ledger_id else None
        names[ref] = ref.entry_id if entry is None or not entry.payload else _name_of(entry)
    return names[ref]


def _name_of(entry: StoredEntry) -> str:
    if entry.entry_type == events.TOOL_CALL:
        return result_id(entry.entity_id, payload_as(ToolCallPayload, entry.payload)["call"])
    overlay = payload_as(OverlayPayload, entry.payload)
    return overlay.get("artifact_id") or overlay.get("overlay_id") or entry.entity_id


def _decision(entry: StoredEntry) -> ShadowDecisionPayload:
    return payload_as(ShadowDecisionPayload, entry.payload)


def _events(entry: StoredEntry) -> Sequence[ShadowEvent]:
    """The life cycle events of a decision; none where they were erased."""
    return opened(_decision(entry)["events"]) or ()


def _actions(decisions: Iterable[StoredEntry]) -> list[str]:
    every: list[str] = list(dict.fromkeys(_decision(entry)["action"] for entry in decisions))
    return [each for each in every if each != "CONTINUE"] or every


def _turn_lines(turn: ShadowTurn) -> Iterator[str]:
    yield f"turn {turn.turn_id}  “{one_line(turn.message, _WIDTH)}”"
    goal = f"  “{one_line(turn.objective, _WIDTH)}”" if turn.objective is not None else ""
    action = " ".join(turn.actions) or "nothing decided"
    yield f"  shadow: {action}, {turn.shadow_tokens:,} tokens, intent {turn.intent_id or 'none'}{goal}"
    if not turn.is_comparable:
        yield "  no reply was asked for, so attention showed nothing"
        return
    for what, names in (("both", turn.both), ("only shadow", turn.only_shadow), ("only attention", turn.only_attention)):
        rest = f" … and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        yield f"  {what:<16}{', '.join(names[:_NAMED])}{rest}" if names else f"  {what:<16}–"
