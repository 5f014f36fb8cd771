"""Reads a session's past as the Context Authority sees it, also while another process writes. Takes no lock.

The ledger may be another program's, whose entries need not name their session: if Kitchener did not start the session, entries
without a session count as its own. The other context commands use the values made here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kitchener.actors.authority.agent_ruleset import ruleset_of
from kitchener.actors.authority.session_thread import SessionThread
from kitchener.actors.sessions.fresh_ids import check_session_id
from kitchener.config import HO2Config
from kitchener.context import ContextState, SourceEvent, estimator, fold, make_event
from kitchener.errors import CallerError, NotOnRecord, UnknownSession
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.turn_views.turn_end import current
from kitchener.ledger import StoredEntry
from kitchener.records import events
from kitchener.records.entries import CommonPayload
from kitchener.records.index_keys import shared_intents_key
from kitchener.runtime.sealed_root import why_unreadable
from kitchener.sealed_values import is_sealed
from kitchener.small_files import is_there


@dataclass(frozen=True, slots=True)
class RecordedSession:
    """What the supervisor's ledger holds about one session."""

    session_id: str
    """"": the entries of another program that name no session."""
    agent_class: str
    config: HO2Config
    """The settings of that class, as they are now."""
    path: Path
    """The supervisor's ledger."""
    context_path: Path
    """The ledger of decisions beside it."""
    entries: tuple[StoredEntry, ...]
    """In the order of the ledger."""
    shared: tuple[StoredEntry, ...] = ()
    """What the subject's other sessions wrote about the intents that they share, in order."""

    unreadable: str = ""
    """Why some of its texts cannot be read; "": all can be."""

    @property
    def start(self) -> StoredEntry | None:
        """Its `SESSION_START`; another program's ledger need not have one."""
        return next((each for each in self.entries if each.entry_type == events.SESSION_START), None)

    @property
    def subject_id(self) -> str | None:
        """Whose it is, where the ledger says so."""
        mine = (each for each in self.entries if each.session_id == self.session_id)
        named = (events.read_common(each).get("subject_id") for each in mine)
        return next((each for each in named if isinstance(each, str)), None)

    @property
    def is_erased(self) -> bool:
        """Whether its messages and replies can no longer be read."""
        return any(is_sealed(value) for each in self.entries for value in each.payload.values())

    @property
    def name(self) -> str:
        return f"session {self.session_id}" if self.session_id else f"what names no session in {self.path}"

    def common_fields(self) -> CommonPayload:
        """What every entry that is written about the session holds."""
        fields: CommonPayload = {"v": events.VERSION}
        if self.session_id:
            fields["session_id"] = self.session_id
        if self.subject_id is not None:
            fields["subject_id"] = self.subject_id
        return fields

    def as_of(self, timestamp: str) -> "RecordedSession":
        """Returns the session as it was at a time.

        Args:
            timestamp: ISO time, UTC, microseconds
        """
        kept, shared = (
            tuple([each for each in entries if _moment(each) <= timestamp]) for entries in (self.entries, self.shared)
        )
        return replace(self, entries=kept, shared=shared)

    def state(
        self,
        entries: Iterable[StoredEntry] | None = None,
        *,
        position: int | None = None,
        policy_version: int = events.POLICY_VERSION,
    ) -> ContextState:
        """The state that its entries lead to.

        Args:
            entries: of its own, only these
            position: of the other sessions' entries, only those up to here
            policy_version: version of the rules that say what an item is
        """
        others = [each for each in self.shared if position is None or each.seq <= position]
        mine = self.entries if entries is None else entries
        return fold_entries([*mine, *others], self.config, self.session_id, policy_version)


async def read_past(paths: LedgerPaths, session_id: str, preferred: str, path: Path | None = None) -> RecordedSession:
    """Everything on record about a session.

    Args:
        paths: where ledgers are
        session_id: which session
        preferred: the agent class to look at first
        path: a supervisor's ledger to read in place of those under the root

    Raises:
        UnknownSession, NotOnRecord: no ledger knows the session
        CallerError: there is no such ledger, or no session can have this id
        LedgerDamaged: a line is not what was written
    """
    if path is not None:
        found = await _entries(paths, path, session_id, is_only=True)
        if not found:
            raise NotOnRecord(f"session {session_id!r} is not in {path}")
        beside = path.with_name("context.jsonl")
        return RecordedSession(session_id, preferred, paths.agent(preferred), path, beside, tuple(found))
    classes = [preferred, *[name for name in paths.agent_classes() if name != preferred]]
    for is_only in (False, True):  # a session that is named somewhere goes before entries that name none
        for name in classes:
            ho2m = paths.ledger(name, "ho2m")
            found = await _entries(paths, ho2m, session_id, is_only=is_only) if is_there(ho2m) else []
            if found:
                config = paths.agent(name)
                past = RecordedSession(session_id, name, config, ho2m, paths.ledger(name, "context"), tuple(found))
                past = replace(past, shared=tuple(await _shared(paths, past)))
                return replace(past, unreadable=await _why_unreadable(paths, past)) if past.is_erased else past
    check_session_id(session_id)
    raise UnknownSession(session_id, preferred, classes[1:])


async def _why_unreadable(paths: LedgerPaths, past: RecordedSession) -> str:
    async with paths.reader_at(past.path, is_ho2m=True) as ho2m:
        return await why_unreadable(ho2m, [each.payload for each in past.entries]) if ho2m is not None else ""


async def find_past(paths: LedgerPaths, intent_id: str, preferred: str, path: Path | None = None) -> RecordedSession:
    """Everything on record about the session that declared an intent. Reads whole ledgers; see `read_past`.

    Raises:
        NotOnRecord: no ledger has a declaration of the intent
    """
    classes = [preferred, *[name for name in paths.agent_classes() if name != preferred and path is None]]
    for name in classes:
        ho2m = path if path is not None else paths.ledger(name, "ho2m")
        async with paths.reader_at(ho2m, is_ho2m=True) as reader:
            if reader is None and path is not None:
                raise CallerError(f"{path}: there is no such ledger")
            declarations = reader.read(entity_id=intent_id, entry_type=events.INTENT_DECLARED) if reader is not None else None
            found = [entry async for entry in declarations] if declarations is not None else []
            if not found or reader is None:
                continue
            if found[0].session_id is not None:
                return await read_past(paths, found[0].session_id, name, path)
            unnamed = tuple([entry async for entry in reader.read() if _may_be_of(entry, None)])
            return RecordedSession("", name, paths.agent(name), ho2m, ho2m.with_name("context.jsonl"), unnamed)
    raise NotOnRecord(f"--intent {intent_id!r} was never declared; `kitchener intent list` lists the intents")


async def _entries(paths: LedgerPaths, path: Path, session_id: str, *, is_only: bool) -> list[StoredEntry]:
    async with paths.reader_at(path, is_ho2m=True) as reader:
        if reader is None:
            raise CallerError(f"{path}: there is no such ledger")
        found = [entry async for entry in reader.read(session_id=session_id)]
        if (found and _is_ours(found[0])) or (not found and not is_only):
            return found
        return [entry async for entry in reader.read() if _may_be_of(entry, session_id)]


def _may_be_of(entry: StoredEntry, session_id: str | None) -> bool:
    """Whether an entry names the session, or could belong to it because it names none."""
    return entry.session_id in (None, session_id) and entry.entry_type not in events.OF_NO_SESSION


async def _shared(paths: LedgerPaths, past: RecordedSession) -> list[StoredEntry]:
    """What other sessions wrote about the intents of the subject."""
    async with paths.reader_at(past.path, is_ho2m=True) as reader:
        if reader is None or past.subject_id is None:
            return []
        found = reader.read(key=shared_intents_key(past.subject_id))
        return [entry async for entry in found if events.read_common(entry).get("session_id") != past.session_id]


def _is_ours(first: StoredEntry) -> bool:
    """Whether Kitchener began the session: then each of its entries names it."""
    return first.entry_type == events.SESSION_START and "v" in events.read_common(first)


def _moment(entry: StoredEntry) -> str:
    event = _event(entry)
    return event.timestamp if event is not None else entry.timestamp


def _event(entry: StoredEntry) -> SourceEvent | None:
    return make_event(entry.entry_type, entry.entity_id, entry.timestamp, current(entry), entry.ref)


def fold_entries(
    entries: Iterable[StoredEntry], config: HO2Config, session_id: str, policy_version: int = events.POLICY_VERSION
) -> ContextState:
    """The state that entries of the supervisor's ledger lead to, in turns under this version of the policy."""
    found = (_event(entry) for entry in entries)
    ruleset = ruleset_of(config, policy_version=policy_version)
    estimate = estimator(ruleset.token_estimator)
    return fold((event for event in found if event is not None), estimate, session_id, is_split=ruleset.is_split)


async def state_of(paths: LedgerPaths, past: RecordedSession) -> ContextState:
    """The state that a session's entries lead to; in shadow mode the state of the shadow."""
    return await fold_shadow(paths, past, past.entries) if past.config.context_mode == "shadow" else past.state()


async def fold_shadow(
    paths: LedgerPaths,
    past: RecordedSession,
    entries: Sequence[StoredEntry],
    policy_version: int = events.POLICY_VERSION,
) -> ContextState:
    """The state of the shadow, whose own decisions are in the context ledger."""
    config = past.config.model_copy(update={"context_mode": "shadow"})
    ruleset = ruleset_of(config, policy_version=policy_version)
    async with paths.reader_at(past.context_path) as context:
        if context is None:
            return fold_entries(entries, past.config, past.session_id, policy_version)
        state = ContextState(estimator(ruleset.token_estimator), past.session_id, is_split=ruleset.is_split)
        thread = SessionThread(state, ruleset, is_shadow=True)
        await thread.read_back(past.session_id, entries, context)
        return thread.state
