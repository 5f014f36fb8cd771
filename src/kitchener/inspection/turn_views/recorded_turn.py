"""Reads one turn as the Context Authority saw it: the session's state then, and the recorded decision as a `Projection`.

A projection that is made again from the same past is equal, with every size. If the settings have changed since, it is not:
then what was visible, and why the rest was not, come from the record, and only the sizes are today's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple

from kitchener.actors.authority.agent_ruleset import ruleset_of
from kitchener.actors.authority.subject_turns import SubjectTurns, SubjectView, message_in
from kitchener.choices import ContextMode
from kitchener.context import (
    ContextState,
    Explanation,
    Item,
    Projection,
    ProjectionLists,
    Ruleset,
    ToolResult,
    bias_item,
    estimator,
    evidence_item,
    explain,
)
from kitchener.context import recalled as recalled_item
from kitchener.context.fold.context_events import Said, read_event
from kitchener.context.fold.items import LINE, OF_MESSAGE, said_item
from kitchener.context.projection.explanation import explain_all, find_placed
from kitchener.errors import NotOnRecord
from kitchener.ids import session_of_valid_turn
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.shown_text import UNREADABLE
from kitchener.inspection.spending import Spending
from kitchener.inspection.turn_views.answered_calls import AnsweredCall, read_answered_calls, spent_on
from kitchener.inspection.turn_views.rebuilt_projection import rebuild
from kitchener.inspection.turn_views.recorded_lists import RecordedLists
from kitchener.inspection.turn_views.recorded_results import kept_results, read_results, result_items
from kitchener.inspection.turn_views.recorded_session import RecordedSession, fold_shadow, read_past
from kitchener.inspection.turn_views.turn_approvals import TurnApprovals, approvals_of
from kitchener.inspection.turn_views.turn_breaks import read_turn_breaks
from kitchener.inspection.turn_views.turn_end import NOT_ENDED, TurnEnd, end_of
from kitchener.ledger import LedgerReader, StoredEntry
from kitchener.ledger.format.imported import ImportedEntry
from kitchener.memory.overlays import parse_overlay
from kitchener.memory.subject_memory import readable_overlay
from kitchener.records import events
from kitchener.records.entries import (
    ERASED,
    ConflictFlagPayload,
    ProjectionPayload,
    TurnAbortedPayload,
    TurnCompletedPayload,
    TurnStartedPayload,
    WorkOrderPlannedPayload,
    opened,
    payload_as,
    text_of,
)
from kitchener.records.index_keys import turn_index_key
from kitchener.records.ref import Ref
from kitchener.records.spoken import message_text, reply_text, told_reply, turn_text
from kitchener.records.tokens import Estimator
from kitchener.sealed_values import is_sealed
from kitchener.tuning import BreakCause

_ENDS = (events.WO_CHAIN_COMPLETE, events.TURN_COMPLETED, events.TURN_ABORTED, events.WO_ABANDONED)


@dataclass(frozen=True, slots=True)
class TurnView:
    """What one turn was shown, and out of what."""

    turn_id: str
    past: RecordedSession
    mode: ContextMode
    message: str
    started_at: str
    state: ContextState
    """The state of the session when the context was decided."""
    projection: Projection | None
    """None: nothing was projected; `why_nothing` says why."""
    is_exact: bool = True
    """Whether the projection could be made again as it was; otherwise its sizes are by today's settings."""
    why_nothing: str = ""
    flags: tuple[ConflictFlagPayload, ...] = ()
    """The turn's `CONFLICT_FLAG` payloads."""
    later: tuple[StoredEntry, ...] = ()
    """The session's entries after the context was decided."""
    calls: tuple[AnsweredCall, ...] = ()
    """The turn's answered model calls."""
    spent: Spending = field(default_factory=Spending)
    """What these calls used."""
    breaks: tuple[BreakCause, ...] | None = None
    """Why its prompt begins differently from the previous turn's; (): it does not; None: there is none to compare."""
    end: TurnEnd = NOT_ENDED
    """How the turn ended."""
    approvals: TurnApprovals = field(default=TurnApprovals())
    """What it asked a person, or what it continued."""
    gathered: tuple[str, ...] = field(default=())
    """Where attention chose: the turns and other entries that it showed."""
    kept_results: tuple[ToolResult, ...] = ()
    """The results of tools that were kept for the turn, including results of intents that it did not reach."""

    def explain(self, name: str) -> Explanation:
        """What became of an entry or an entity in this turn.

        Raises:
            NotOnRecord: the session has nothing of this name, or nothing was projected
        """
        if self.projection is None:
            raise NotOnRecord(f"turn {self.turn_id}: {self.why_nothing}")
        placed, event = find_placed(self.projection, name), self.state.find_entry(name)
        if placed is not None and event is not None and placed.item.ref != event.ref:
            name = event.entity_id  # an entry of the memory's ledger has the same id; the supervisor's is meant
        found = explain(name, self.state, self.projection)
        if found.verdict != "unknown":
            return found
        result = next((each for each in self.kept_results if name in (each.result_id, each.ref.entry_id)), None)
        if result is not None:
            return self._of_result(name, result, self.projection)
        named = (name, name.removesuffix(OF_MESSAGE))
        known = next((e for e in (*self.past.entries, *self.later) if e.entry_id == name or e.entity_id in named), None)
        if known is None:
            raise NotOnRecord(
                f"--entry {name!r}: no entry, intent, work order, turn, rule or learned line of session"
                f" {self.past.session_id}; `kitchener context explain {self.turn_id}` lists what there is"
            )
        if name == self.turn_id:
            text = f"{name} is the turn itself, which is shown only what existed before it"
        elif known in self.later:
            text = f"{name} did not exist yet: {known.entry_type} in {known.entry_id} was written after the context was decided"
        else:
            text = f"{name} is a {known.entry_type}, which says nothing about context"
        return found._replace(text=text, since=known.ref)

    def _of_result(self, name: str, result: ToolResult, projection: Projection) -> Explanation:
        """Of a result that the projection does not have: what became of its turn says why."""
        of_turn = explain(result.turn_id, self.state, projection)
        turn = self.state.turns.get(result.turn_id)
        owner = f", which belongs to {turn.intent_id}" if turn is not None and turn.intent_id is not None else ""
        text = f"{name} is a result of {result.tool_id} in {result.turn_id}{owner}: {of_turn.text}"
        verdict = "unreachable" if of_turn.is_eligible else of_turn.verdict
        return of_turn._replace(entity_id=name, verdict=verdict, text=text, since=result.ref)

    def explain_all(self) -> list[Explanation]:
        """What became of everything; empty where nothing was projected."""
        return list(explain_all(self.state, self.projection)) if self.projection is not None else []


async def read_turn(paths: LedgerPaths, preferred: str, turn_id: str) -> TurnView:
    """A turn's view. Reads the decisions about its session, the calls of the turn, and of other
    sessions what the turn names.

    Raises:
        CallerError: it is no turn id
        UnknownSession, NotOnRecord: no ledger knows the turn
    """
    async with paths.kept_open() as kept:
        return await _read_turn(kept, preferred, turn_id)


async def _read_turn(paths: LedgerPaths, preferred: str, turn_id: str) -> TurnView:
    session_id = session_of_valid_turn(turn_id)
    past = await read_past(paths, session_id, preferred)
    begun = next(
        (n for n, e in enumerate(past.entries) if e.entity_id == turn_id and e.entry_type == events.TURN_STARTED), None
    )
    if begun is None and any(e.entity_id == turn_id and e.entry_type == events.MESSAGE_IMPORTED for e in past.entries):
        raise NotOnRecord(f"{turn_id!r} is an imported message: no turn ran for it here, and no model was shown anything")
    if begun is None:
        raise NotOnRecord(f"turn {turn_id!r} is not on record; `kitchener session show {session_id}` lists the turns there are")
    cut = next((n for n in range(begun + 1, len(past.entries)) if _is_after(past.entries[n])), len(past.entries))
    async with paths.reader_at(past.context_path) as context:
        decided = [] if context is None else [entry async for entry in context.read(session_id=session_id)]
    recorded = RecordedLists(decided)
    view = await _viewed(paths, past, past.entries[begun], cut, decided, recorded)
    calls = await read_answered_calls(paths, past.agent_class, past.entries, turn_id)
    spent = spent_on(calls.billed, paths.config.router.prices)
    spent.nested_turns += calls.nested_turns
    breaks = await read_turn_breaks(paths, past, turn_id, decided, recorded)
    approvals = approvals_of(past.entries).get(turn_id, view.approvals)
    end = end_of(turn_id, past.entries, calls.waited_for)
    return replace(view, calls=calls.answered, spent=spent, breaks=breaks, end=end, approvals=approvals)


def _is_after(entry: StoredEntry) -> bool:
    """Whether an entry of a turn comes after its context was decided: that is done between classify and all the rest."""
    if entry.entry_type == events.WO_PLANNED:
        return payload_as(WorkOrderPlannedPayload, entry.payload).get("wo_type") != "classify"
    return entry.entry_type in _ENDS


async def _viewed(
    paths: LedgerPaths,
    past: RecordedSession,
    started: StoredEntry,
    cut: int,
    decided: Sequence[StoredEntry],
    recorded: RecordedLists,
) -> TurnView:
    turn_id, before = started.entity_id, past.entries[:cut]
    begun = payload_as(TurnStartedPayload, started.payload)
    mine = [entry for entry in decided if events.read_common(entry).get("turn_id") == turn_id]
    shown = next((entry for entry in mine if entry.entry_type == events.PROJECTION_COMPUTED), None)
    said = begun.get("user_message")
    message = said if isinstance(said, str) else UNREADABLE
    version = begun.get("policy_version", 1)
    projection, is_exact, why_nothing, gathered = None, True, "", tuple[str, ...]()
    kept = await kept_results(paths, past, before)
    if shown is None:
        state = past.state(before, position=_position(started, begun))
        mode, why_nothing = _nothing(past, turn_id, cut, state)
        gathered = tuple(_gathered(past, turn_id, {each.ref.entry_id: each.result_id for each in kept}))
    else:
        payload = events.read_as(ProjectionPayload, shown)
        mode = payload["mode"]
        if mode == "shadow":
            state = await fold_shadow(paths, past, before, version)
        else:
            state = past.state(before, position=_position(started, begun), policy_version=version)
        lists = recorded.of(shown)
        offered = [
            *await _offered(paths, past, lists, state, version),
            *result_items(past, await _named_results(paths, past, lists), state, message),
        ]
        others = await _subject_words(paths, past, started, ruleset_of(past.config, policy_version=version), begun)
        projection, is_exact = rebuild(state, past.config, payload, lists, message, offered, begun=begun, others=others)
    return TurnView(
        turn_id,
        past,
        mode,
        message,
        started.timestamp,
        state,
        projection,
        is_exact,
        why_nothing,
        flags=tuple(events.read_as(ConflictFlagPayload, each) for each in mine if each.entry_type == events.CONFLICT_FLAG),
        later=past.entries[cut:],
        gathered=gathered,
        kept_results=tuple(kept),
    )


def _position(started: StoredEntry, payload: TurnStartedPayload) -> int:
    """Where the supervisor's ledger stood when a turn began; another program may not have recorded it.

    An import keeps the order of the ledger, and not the numbers.
    """
    if isinstance(started, ImportedEntry):
        return started.seq
    found = payload.get("read_positions")
    position = found.get(started.ledger_id) if isinstance(found, Mapping) else None
    return position if isinstance(position, int) else started.seq


class _ForReading(NamedTuple):
    """A ledger whose turns are read once."""

    ho2m: LedgerReader
    is_sole_writer: bool = False


async def _subject_words(
    paths: LedgerPaths, past: RecordedSession, started: StoredEntry, ruleset: Ruleset, begun: TurnStartedPayload
) -> SubjectView | None:
    """The turns of its subject that a turn could recall; None: none, or the turn was recorded in another root."""
    if ruleset.recall_scope != "subject" or past.subject_id is None or isinstance(started, ImportedEntry):
        return None
    async with paths.reader(past.agent_class) as ho2m:
        if ho2m is None:
            return None
        turns = SubjectTurns(_ForReading(ho2m), estimator(ruleset.token_estimator), ruleset)
        return await turns.of(past.subject_id, _position(started, begun))


def _nothing(past: RecordedSession, turn_id: str, cut: int, state: ContextState) -> tuple[ContextMode, str]:
    """Why a turn has no projection."""
    end = next((e for e in past.entries[cut:] if e.entity_id == turn_id and e.entry_type in _ENDS[1:3]), None)
    completed = payload_as(TurnCompletedPayload, end.payload if end is not None else {})
    if not state.intents and completed.get("intent_id") is None:
        return "off", "context_mode was off, so attention chose what the model saw"
    if end is None:
        return "enforce", "its context was not decided yet"
    if end.entry_type == events.TURN_ABORTED:
        reason = payload_as(TurnAbortedPayload, end.payload).get("reason")
        return "enforce", f"it was aborted ({reason}) before its context was decided"
    error = opened(completed.get("error"))
    if isinstance(error, Mapping) and "kind" in error:
        return "enforce", f"it was answered without a model: {error['kind']}: {error.get('message')}"
    return "enforce", "it was answered without a model: its message chose the thread that continues"


def _gathered(past: RecordedSession, turn_id: str, results: Mapping[str, str]) -> list[str]:
    """The entries that attention showed to the model, by what they are about where that is known.

    Args:
        past: the session
        turn_id: the turn
        results: entries with the results of tools, to the ids of the results
    """
    about = {entry.entry_id: entry.entity_id for entry in past.entries} | dict(results)
    found: dict[str, None] = {}
    for entry in past.entries:
        plan = payload_as(WorkOrderPlannedPayload, entry.payload) if entry.entry_type == events.WO_PLANNED else None
        attention = plan.get("attention") if plan is not None and plan.get("turn_id") == turn_id else None
        if isinstance(attention, Mapping):
            refs = [ref["entry_id"] for ref in attention.get("fragment_refs", ())]
            found.update((about.get(name, name), None) for name in (*refs, *attention.get("biases", ())))
    return list(found)


async def _offered(
    paths: LedgerPaths, past: RecordedSession, lists: ProjectionLists, state: ContextState, policy_version: int
) -> list[Item]:
    """The learned lines and the recalled evidence that a projection names, as items."""
    named = (*lists.eligible, *lists.visible, *[ref for ref, _ in lists.suppressed])
    wanted = dict.fromkeys(named)
    learned = [ref for ref in wanted if "HO3_BIAS" in lists.why(ref)]
    evidence = [ref for ref in wanted if "RECALLED" in lists.why(ref)]
    items = await _learned(paths, past, learned) if learned else []
    turns = {item.ref: item for item in state.turns.values()}
    items += [recalled_item(turns[ref]) for ref in evidence if ref in turns]
    elsewhere = [ref for ref in evidence if ref not in turns]
    if elsewhere:
        async with paths.reader_at(past.path, is_ho2m=True) as ho2m:
            ruleset = ruleset_of(past.config, policy_version=policy_version)
            found = [await _evidence(ho2m, ref, ruleset) for ref in elsewhere if ho2m is not None]
        items += [item for item in found if item is not None]
    return items


async def _part(ho2m: LedgerReader, entry: StoredEntry, ref: Ref, estimate: Estimator) -> Item:
    """A message or a reply of another session."""
    is_message = entry.entry_type == events.TURN_STARTED
    said = await message_in(ho2m, entry) if is_message else payload_as(TurnCompletedPayload, entry.payload).get("response")
    name = f"{entry.entity_id}{OF_MESSAGE}" if is_message else entry.entity_id
    speaker = payload_as(TurnStartedPayload, entry.payload).get("speaker")
    told = (
        message_text(str(said), text_of(speaker) if speaker is not None else None)
        if is_message
        else reply_text(told_reply(entry.payload))
    )
    text = f"[{name}] erased" if is_sealed(said) else told
    item = evidence_item(name, ref, entry.timestamp, text, estimate, session_id=entry.session_id, separator=LINE)
    return item._replace(is_erased=is_sealed(said))


async def _named_results(paths: LedgerPaths, past: RecordedSession, lists: ProjectionLists) -> list[ToolResult]:
    """The results of tools that a projection names, oldest first."""
    named = [ref for ref in lists.eligible if "TOOL_RESULT" in lists.why(ref)]
    return await read_results(paths, past, sorted(named, key=attrgetter("seq")))


async def _learned(paths: LedgerPaths, past: RecordedSession, refs: Sequence[Ref]) -> list[Item]:
    estimate = estimator(ruleset_of(past.config).token_estimator)
    items: list[Item] = []
    async with paths.reader(past.agent_class, "overlays") as overlays:
        for ref in refs:
            entry = await overlays.find(ref) if overlays is not None else None
            if entry is not None:
                overlay = parse_overlay(readable_overlay(entry.payload))
                item = bias_item(overlay.key, ref, entry.timestamp, overlay.line or ERASED, estimate)
                items.append(item._replace(is_erased=overlay.is_erased))
    return items


async def _evidence(ho2m: LedgerReader, ref: Ref, ruleset: Ruleset) -> Item | None:
    """What was said in a turn of another session: its message, its reply, or under an older policy both."""
    entry = await ho2m.find(ref)
    if entry is None:
        return None
    estimate = estimator(ruleset.token_estimator)
    if (event := read_event(entry)) is not None and isinstance(event.facts, Said):
        return recalled_item(said_item(event, event.facts, estimate))
    if ruleset.is_split:
        return await _part(ho2m, entry, ref, estimate)
    completed = payload_as(TurnCompletedPayload, entry.payload)
    started = await ho2m.last(key=turn_index_key(entry.entity_id))
    if not started and (told := completed.get("user_message_ref")) is not None:  # imported for the replay only
        started = [each for each in [await ho2m.find(Ref.from_mapping(told))] if each is not None]
    begun = payload_as(TurnStartedPayload, started[-1].payload if started else {})
    message = await message_in(ho2m, started[-1]) if started else None
    response = completed.get("response")
    is_erased = is_sealed(message) or is_sealed(response)
    text = turn_text(str(message), told_reply(entry.payload), opened(begun.get("speaker")))
    if is_erased:
        text = f"[{entry.entity_id}] erased"
    item = evidence_item(entry.entity_id, ref, entry.timestamp, text, estimate, session_id=entry.session_id)
    return item._replace(is_erased=is_erased)
