"""A session's past as the Context Authority reads it, from ledgers that anybody may be writing. Takes no lock.

The ledger may be another program's, whose entries need not name their session: where the session was not begun by Kitchener,
entries without one count as its own. Every other command stands on the values made here.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kitchener.actors.authority.authority import SessionThread, read_thread, ruleset_of
from kitchener.cli.options import Places
from kitchener.config import HO2Config
from kitchener.context import ContextState, SourceEvent, estimator, fold, make_event
from kitchener.errors import CallerError, NotOnRecord, UnknownSession
from kitchener.ids import is_session_id
from kitchener.ledger import LedgerReader, StoredEntry
from kitchener.records import events
from kitchener.records.events import index_keys
from kitchener.sealing import is_sealed


@dataclass(frozen=True, slots=True)
class Past:
    """What the supervisor's ledger holds about one session."""

    session_id: str
    agent_class: str
    config: HO2Config
    """The settings of that class, as they are now."""
    path: Path
    """The supervisor's ledger."""
    context_path: Path
    """The ledger of decisions beside it."""
    entries: tuple[StoredEntry, ...]
    """In order."""
    shared: tuple[StoredEntry, ...] = ()
    """What the subject's other sessions wrote about the intents that they share, in order."""

    @property
    def start(self) -> StoredEntry | None:
        """Its `SESSION_START`; another program's ledger need not have one."""
        return next((each for each in self.entries if each.entry_type == events.SESSION_START), None)

    @property
    def subject_id(self) -> str | None:
        """Whose it is, where the ledger says so."""
        found = self.start.payload.get("subject_id") if self.start is not None else None
        return found if isinstance(found, str) else None

    @property
    def is_erased(self) -> bool:
        """Whether what its subject said and was answered cannot be read any more."""
        return any(is_sealed(value) for each in self.entries for value in each.payload.values())

    def as_of(self, timestamp: str) -> "Past":
        """The same, up to a moment.

        Args:
            timestamp: ISO time, UTC, microseconds
        """
        kept, shared = (
            tuple([each for each in entries if _moment(each) <= timestamp]) for entries in (self.entries, self.shared)
        )
        return replace(self, entries=kept, shared=shared)

    def state(self, entries: Iterable[StoredEntry] | None = None, *, position: int | None = None) -> ContextState:
        """The state that its entries lead to.

        Args:
            entries: of its own, only these
            position: of the other sessions' entries, only those up to here
        """
        others = [each for each in self.shared if position is None or each.seq <= position]
        return fold_entries([*(self.entries if entries is None else entries), *others], self.config, self.session_id)


def context_path(places: Places, agent_class: str) -> Path:
    """The ledger of decisions of an agent class: beside the supervisor's, wherever that is."""
    return places.ledger(agent_class, "ho2m").with_name("context.jsonl")


@asynccontextmanager
async def open_reader(places: Places, path: Path, *, is_ho2m: bool = False) -> AsyncIterator[LedgerReader | None]:
    """A reader of a ledger, a supervisor's or another; None where there is none yet."""
    if not _is_there(path):
        yield None
        return
    index_dir = places.root / "index" if path.is_relative_to(places.root) else None
    keys = index_keys if is_ho2m else None
    async with LedgerReader.open(path, index_dir=index_dir, index_keys=keys, sealer=places.sealer()) as reader:
        yield reader


def _is_there(path: Path) -> bool:
    return path.exists()


async def read_past(places: Places, session_id: str, preferred: str, path: Path | None = None) -> Past:
    """Everything on record about a session.

    Args:
        places: where ledgers are
        session_id: which session
        preferred: the agent class to look at first
        path: a supervisor's ledger to read in place of those under the root

    Raises:
        UnknownSession, NotOnRecord: no ledger knows the session
        CallerError: there is no such ledger, or no session can have this id
        LedgerDamaged: a line is not what was written
    """
    if path is not None:
        found = await _entries(places, path, session_id, is_only=True)
        if not found:
            raise NotOnRecord(f"session {session_id!r} is not in {path}")
        beside = path.with_name("context.jsonl")
        return Past(session_id, preferred, places.agent(preferred), path, beside, tuple(found))
    classes = [preferred, *[name for name in places.agent_classes() if name != preferred]]
    for is_only in (False, True):  # a session that is named somewhere goes before entries that name none
        for name in classes:
            ho2m = places.ledger(name, "ho2m")
            found = await _entries(places, ho2m, session_id, is_only=is_only) if ho2m.exists() else []
            if found:
                config = places.agent(name)
                past = Past(session_id, name, config, ho2m, context_path(places, name), tuple(found))
                return replace(past, shared=tuple(await _shared(places, past)))
    if not is_session_id(session_id):
        raise CallerError(f"{session_id!r} is not a session id: expected SES- and 8 to 32 lower-case hex digits")
    raise UnknownSession(session_id, preferred)


async def _entries(places: Places, path: Path, session_id: str, *, is_only: bool) -> list[StoredEntry]:
    async with open_reader(places, path, is_ho2m=True) as reader:
        if reader is None:
            raise CallerError(f"{path}: there is no such ledger")
        found = [entry async for entry in reader.read(session_id=session_id)]
        if (found and _is_ours(found[0])) or (not found and not is_only):
            return found
        return [entry async for entry in reader.read() if entry.session_id in (None, session_id)]


async def _shared(places: Places, past: Past) -> list[StoredEntry]:
    """What other sessions wrote about the intents of the subject."""
    async with open_reader(places, past.path, is_ho2m=True) as reader:
        if reader is None or past.subject_id is None:
            return []
        found = reader.read(key=events.shared_intents_key(past.subject_id))
        return [entry async for entry in found if entry.session_id != past.session_id]


def _is_ours(first: StoredEntry) -> bool:
    """Whether Kitchener began the session: then each of its entries names it."""
    return first.entry_type == events.SESSION_START and "v" in first.payload


def _moment(entry: StoredEntry) -> str:
    event = _event(entry)
    return event.timestamp if event is not None else entry.timestamp


def _event(entry: StoredEntry) -> SourceEvent | None:
    payload = entry.payload
    if isinstance(payload.get("v", 1), int):  # another program may mean something else by it
        payload = events.read_payload(entry.entry_type, payload)
    return make_event(entry.entry_type, entry.entity_id, entry.timestamp, payload, entry.ref)


def fold_entries(entries: Iterable[StoredEntry], config: HO2Config, session_id: str) -> ContextState:
    """The state that entries of the supervisor's ledger lead to."""
    found = (_event(entry) for entry in entries)
    estimate = estimator(ruleset_of(config).token_estimator)
    return fold((event for event in found if event is not None), estimate, session_id)


async def fold_shadow(places: Places, past: Past, entries: Sequence[StoredEntry]) -> ContextState:
    """The state of the shadow, whose own decisions stand on the ledger of decisions."""
    ruleset = ruleset_of(past.config.model_copy(update={"context_mode": "shadow"}))
    async with open_reader(places, past.context_path) as context:
        if context is None:
            return fold_entries(entries, past.config, past.session_id)
        state = ContextState(estimator(ruleset.token_estimator), past.session_id)
        thread = SessionThread(state, ruleset, is_shadow=True)
        return (await read_thread(thread, past.session_id, entries, context)).state
