"""One turn as the Context Authority saw it: the state at that moment, and the projection that is on record for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kitchener.actors.authority.authority import ruleset_of
from kitchener.cli.context.past import Past, fold_shadow, open_reader, read_past
from kitchener.cli.context.rebuild import rebuild
from kitchener.cli.options import Places
from kitchener.cli.terminal.output import UNREADABLE
from kitchener.context import (
    ContextState,
    Explanation,
    Item,
    Projection,
    ProjectionLists,
    base_ref,
    bias_item,
    estimator,
    evidence_item,
    explain,
    read_lists,
    recalled,
)
from kitchener.context.projection.explanation import explain_all, find_placed
from kitchener.errors import CallerError, NotOnRecord
from kitchener.ids import session_of_turn
from kitchener.ledger import LedgerReader, StoredEntry
from kitchener.memory.overlays import parse_overlay
from kitchener.memory.reader import OVERLAYS_FILE, memory_dir
from kitchener.memory.subject import readable_overlay
from kitchener.records import events
from kitchener.records.entries import ERASED
from kitchener.records.ref import Ref
from kitchener.records.spoken import turn_text
from kitchener.runtime.memories import memory_config
from kitchener.sealing import is_sealed

Mode = Literal["enforce", "shadow", "off"]
_ENDS = (events.WO_CHAIN_COMPLETE, events.TURN_COMPLETED, events.TURN_ABORTED, events.WO_ABANDONED)


@dataclass(frozen=True, slots=True)
class TurnView:
    """What one turn was shown, and out of what."""

    turn_id: str
    past: Past
    mode: Mode
    message: str
    started_at: str
    state: ContextState
    """As it was when the context was decided."""
    projection: Projection | None
    """None: nothing was projected; `why_nothing` says why."""
    is_exact: bool = True
    """Whether the projection could be made again as it was; otherwise its sizes are by today's settings."""
    why_nothing: str = ""
    flags: tuple[Mapping[str, Any], ...] = ()
    """The turn's `CONFLICT_FLAG` payloads."""
    later: tuple[StoredEntry, ...] = ()
    """The session's entries after the context was decided."""
    gathered: tuple[str, ...] = field(default=())
    """Where attention chose: the turns and other entries that it showed."""

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
        known = next((e for e in (*self.past.entries, *self.later) if name in (e.entry_id, e.entity_id)), None)
        if known is None:
            raise NotOnRecord(
                f"--entry {name!r}: no entry, intent, work order, turn, rule or learned line of session"
                f" {self.past.session_id}; `kitchener context explain --turn {self.turn_id}` lists what there is"
            )
        if known in self.later:
            text = f"{name} was not there yet: {known.entry_type} in {known.entry_id} came after the context was decided"
        else:
            text = f"{name} is a {known.entry_type}, which says nothing about context"
        return found._replace(text=text, since=known.ref)

    def explain_all(self) -> list[Explanation]:
        """What became of everything; empty where nothing was projected."""
        return list(explain_all(self.state, self.projection)) if self.projection is not None else []


async def read_turn(places: Places, preferred: str, turn_id: str) -> TurnView:
    """A turn's view.

    Raises:
        CallerError: it is no turn id
        UnknownSession, NotOnRecord: no ledger knows the turn
    """
    session_id = session_of_turn(turn_id)
    if session_id is None:
        raise CallerError(f"{turn_id!r} is not a turn id: expected T-, the session's hex digits, - and six digits")
    past = await read_past(places, session_id, preferred)
    begun = next(
        (n for n, e in enumerate(past.entries) if e.entity_id == turn_id and e.entry_type == events.TURN_STARTED), None
    )
    if begun is None:
        raise NotOnRecord(f"turn {turn_id!r} is not on record; `kitchener session show {session_id}` lists the turns there are")
    cut = next((n for n in range(begun + 1, len(past.entries)) if _is_after(past.entries[n])), len(past.entries))
    async with open_reader(places, past.context_path) as context:
        decided = [] if context is None else [entry async for entry in context.read(session_id=session_id)]
    return await _viewed(places, past, past.entries[begun], cut, decided)


def _begins(entry: StoredEntry, turn_id: str) -> bool:
    return entry.entity_id == turn_id and entry.entry_type == events.TURN_STARTED


def _is_after(entry: StoredEntry) -> bool:
    """Whether an entry of a turn comes after its context was decided: that is done between classify and all the rest."""
    if entry.entry_type == events.WO_PLANNED:
        return entry.payload.get("wo_type") != "classify"
    return entry.entry_type in _ENDS


async def _viewed(places: Places, past: Past, started: StoredEntry, cut: int, decided: Sequence[StoredEntry]) -> TurnView:
    turn_id, before = started.entity_id, past.entries[:cut]
    mine = [entry for entry in decided if entry.payload.get("turn_id") == turn_id]
    shown = next((entry for entry in mine if entry.entry_type == events.PROJECTION_COMPUTED), None)
    said = started.payload.get("user_message")
    common: dict[str, Any] = {
        "turn_id": turn_id,
        "past": past,
        "message": said if isinstance(said, str) else UNREADABLE,
        "started_at": started.timestamp,
        "flags": tuple(entry.payload for entry in mine if entry.entry_type == events.CONFLICT_FLAG),
        "later": past.entries[cut:],
    }
    if shown is None:
        state = past.state(before, position=_position(started))
        mode, why = _nothing(past, turn_id, cut, state)
        gathered = tuple(_gathered(past, turn_id))
        return TurnView(**common, mode=mode, state=state, projection=None, why_nothing=why, gathered=gathered)
    mode = shown.payload["mode"]
    if mode == "shadow":
        state = await fold_shadow(places, past, before)
    else:
        state = past.state(before, position=_position(started))
    lists = _lists(shown, decided)
    offered = await _offered(places, past, lists, state)
    projection, is_exact = rebuild(state, past.config, shown.payload, lists, common["message"], offered)
    return TurnView(**common, mode=mode, state=state, projection=projection, is_exact=is_exact)


def _position(started: StoredEntry) -> int:
    """Where the supervisor's ledger stood when a turn began."""
    found = started.payload.get("read_positions")
    position = found.get(started.ledger_id) if isinstance(found, Mapping) else None
    return position if isinstance(position, int) else started.seq


def _nothing(past: Past, turn_id: str, cut: int, state: ContextState) -> tuple[Mode, str]:
    """Why a turn has no projection."""
    end = next((e for e in past.entries[cut:] if e.entity_id == turn_id and e.entry_type in _ENDS[1:3]), None)
    if not state.intents and (end is None or end.payload.get("intent_id") is None):
        return "off", "context_mode was off, so attention chose what the model saw"
    if end is None:
        return "enforce", "it has not come so far that its context was decided"
    if end.entry_type == events.TURN_ABORTED:
        return "enforce", f"it was aborted ({end.payload.get('reason')}) before its context was decided"
    error = end.payload.get("error")
    if isinstance(error, Mapping) and "kind" in error:
        return "enforce", f"it was answered without a model: {error['kind']}: {error.get('message')}"
    return "enforce", "it was answered without a model: its message settled which thread goes on"


def _gathered(past: Past, turn_id: str) -> list[str]:
    """The entries that attention showed to the model, by what they are about where that is known."""
    about = {entry.entry_id: entry.entity_id for entry in past.entries}
    found: dict[str, None] = {}
    for entry in past.entries:
        attention = entry.payload.get("attention") if entry.entry_type == events.WO_PLANNED else None
        if isinstance(attention, Mapping) and entry.payload.get("turn_id") == turn_id:
            refs = [ref["entry_id"] for ref in attention.get("fragment_refs", ())]
            found.update((about.get(name, name), None) for name in (*refs, *attention.get("biases", ())))
    return list(found)


def _lists(shown: StoredEntry, decided: Sequence[StoredEntry]) -> ProjectionLists:
    """A recorded projection written out, along those that it is a change of."""
    known = {entry.ref: entry for entry in decided}
    chain = [shown]
    while (base := base_ref(chain[-1].payload)) is not None:
        if base not in known:
            raise NotOnRecord(f"{chain[-1].entry_id} is recorded as a change of {base.entry_id}, which is not there")
        chain.append(known[base])
    lists = read_lists(chain.pop().payload)
    while chain:
        lists = read_lists(chain.pop().payload, lists)
    return lists


async def _offered(places: Places, past: Past, lists: ProjectionLists, state: ContextState) -> list[Item]:
    """The learned lines and the recalled evidence that a projection names, as items."""
    named = (*lists.eligible, *lists.visible, *[ref for ref, _ in lists.suppressed])
    wanted = {ref: why for ref in named for why in [lists.reasons.get(f"{ref.ledger_id}/{ref.entry_id}", ())]}
    learned = [ref for ref, why in wanted.items() if "HO3_BIAS" in why]
    evidence = [ref for ref, why in wanted.items() if "RECALLED" in why]
    items = await _learned(places, past, learned) if learned else []
    turns = {item.ref: item for item in state.turns.values()}
    items += [recalled(turns[ref]) for ref in evidence if ref in turns]
    elsewhere = [ref for ref in evidence if ref not in turns]
    if elsewhere:
        async with open_reader(places, past.path, is_ho2m=True) as ho2m:
            found = [await _evidence(ho2m, ref, past) for ref in elsewhere if ho2m is not None]
        items += [item for item in found if item is not None]
    return items


async def _learned(places: Places, past: Past, refs: Sequence[Ref]) -> list[Item]:
    estimate = estimator(ruleset_of(past.config).token_estimator)
    path = memory_dir(places.root, memory_config(places.config.memory, past.config)) / OVERLAYS_FILE
    items: list[Item] = []
    async with open_reader(places, path) as overlays:
        for ref in refs if overlays is not None else ():
            entry = await overlays.get(_seq(ref)) if overlays is not None else None
            if entry is not None and entry.entry_hash == ref.entry_hash:
                overlay = parse_overlay(readable_overlay(entry.payload))
                item = bias_item(overlay.key, ref, entry.timestamp, overlay.line or ERASED, estimate)
                items.append(item._replace(is_erased=overlay.is_erased))
    return items


async def _evidence(ho2m: LedgerReader, ref: Ref, past: Past) -> Item | None:
    """A turn of another session, with the message that began it."""
    entry = await ho2m.get(_seq(ref))
    if entry is None or entry.entry_hash != ref.entry_hash:
        return None
    started = await ho2m.last(key=events.turn_index_key(entry.entity_id))
    message, response = started[-1].payload.get("user_message") if started else None, entry.payload.get("response")
    estimate = estimator(ruleset_of(past.config).token_estimator)
    is_erased = is_sealed(message) or is_sealed(response)
    text = f"[{entry.entity_id}] erased" if is_erased else turn_text(str(message), str(response))
    item = evidence_item(entry.entity_id, ref, entry.timestamp, text, estimate, session_id=entry.session_id)
    return item._replace(is_erased=is_erased)


def _seq(ref: Ref) -> int:
    return int(ref.entry_id.rpartition("-")[2])
