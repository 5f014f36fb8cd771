"""Erases a subject: destroys the subject's key, deactivates what was learned, and records both in every ledger.

The steps have a safe order. First a note in the keyring marks the erasure as started; from then on the key counts as destroyed.
Then the key is destroyed, images, files and vectors of embeddings are removed, the ledgers record the erasure, and the note is
removed. No ledger thus records an erasure while the data can still be read. The next start or the next call completes an
interrupted erasure. Explained in `docs/erasure.md`.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import anyio.to_thread

from kitchener.actors.erasure_guard import ErasureGuard
from kitchener.actors.sessions.session_state import add_cost, no_cost
from kitchener.actors.similarity.vector_store import erase_vectors
from kitchener.clock import Clock, SystemClock
from kitchener.config import RuntimeConfig
from kitchener.context.lexical.words import forget_words
from kitchener.errors import ConfigError, UnknownSubject
from kitchener.ids import check_erasable, memory_namespace
from kitchener.ledger import LedgerClient, LedgerEntry, StoredEntry
from kitchener.media.content_store import ContentStore
from kitchener.memory import HO3Memory
from kitchener.records import events
from kitchener.records.entries import (
    CostSummary,
    MessageImportedPayload,
    SessionEndPayload,
    SessionStartPayload,
    SubjectErasedPayload,
    TurnCompletedPayload,
    TurnStartedPayload,
    payload_as,
)
from kitchener.records.index_keys import SESSIONS_KEY, erased_index_key, index_keys
from kitchener.runtime.root_layout import index_dir, ledger_ids, memories, sealer_of, settings_of, supervisors_ledgers
from kitchener.runtime.sealed_root import check_keyring
from kitchener.sealed_values import sealing_key_id
from kitchener.sealing import Erasure, Keyring, Sealer
from kitchener.times import iso_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReport:
    """The result of an erasure."""

    subject_id: str
    """The erased subject."""
    key_id: str
    """Id of the destroyed key."""
    erased_at: str
    """ISO time when the erasure started."""
    was_erased_before: bool
    """Whether the subject had been erased before, and nothing was left to do. The counts then come from the record."""
    sessions: int = 0
    """Number of the subject's sessions, with all agent classes."""
    turns: int = 0
    """Number of turns in those sessions."""
    plain_turns: int = 0
    """Number of those turns that were stored in plain text; they cannot be erased and stay readable."""
    artifacts: int = 0
    """Number of deactivated artifacts that had the subject as a source."""
    files: int = 0
    """Number of images and files that this call removed; 0 if an interrupted erasure had removed them."""

    def as_json(self) -> dict[str, object]:
        return asdict(self)


class Stores(NamedTuple):
    """The stores of a subject's data: the keyring, the ledgers (open for writing), the images and files, and the vectors."""

    keyring: Keyring
    supervisors: Mapping[str, LedgerClient]
    """Agent class to its HO2m ledger."""
    memories: Sequence[HO3Memory]
    content: ContentStore
    indexes: Path
    """The directory with the stored vectors of embeddings."""


def keyring_of(sealer: Sealer | None) -> Keyring:
    """The keyring of a sealer.

    Raises:
        ConfigError: there is no keyring
    """
    if sealer is None:
        expected = (
            "is off, and there are no keys: everything is stored in plain text, and ledgers never lose an entry, so no subject"
            " can be erased; with seal = true, later text can be"
        )
        raise ConfigError("[ledger]", "seal", "false", expected)
    return sealer.keyring


@asynccontextmanager
async def open_stores(
    config: RuntimeConfig,
    *,
    clock: Clock,
    sealer: Sealer | None,
    supervisors: Mapping[str, LedgerClient] | None = None,
    opened: Sequence[HO3Memory] = (),
    content: ContentStore | None = None,
) -> AsyncIterator[Stores]:
    """The stores that an erasure needs. Opens and locks those that are not open yet, until the block ends.

    Args:
        config: the whole configuration, with absolute paths
        clock: the time of day
        sealer: the sealer of the configuration; None: there is no keyring
        supervisors: the open HO2m ledgers; None: none is open, and all existing ones are opened
        opened: the open memories
        content: the images and files; None: a store of its own

    Raises:
        ConfigError: there is no keyring
        LedgerLocked: another process has one of the ledgers open
        LedgerDamaged, LedgerPathError: one of the ledgers cannot be opened
    """
    keyring, root = keyring_of(sealer), Path(config.plane_root)
    unique = {memory.signals.path: memory for memory in opened}
    async with AsyncExitStack() as stack:
        found = dict(supervisors or {})
        for name, path in supervisors_ledgers(config).items() if supervisors is None else ():
            found[name] = await stack.enter_async_context(
                LedgerClient.open(
                    path,
                    ledger_id=ledger_ids(name)["ho2m"],
                    config=config.ledger,
                    index_dir=index_dir(config),
                    index_keys=index_keys,
                    clock=clock,
                    sealer=sealer,
                )
            )
        all_memories = [*unique.values()]
        for where, own in memories(config).items():
            if where not in {path.parent for path in unique}:
                memory = HO3Memory.open(root, own, ledger_config=config.ledger, clock=clock, sealer=sealer)
                all_memories.append(await stack.enter_async_context(memory))
        yield Stores(keyring, found, all_memories, content or ContentStore(root, sealer), index_dir(config))


class ErasureGuards:
    """Refuses calls for a subject from `begin` to the end of the block, and longer if the erasure started but did not complete.

    Clears the subject's cached data at the end.

    Args:
        subject_id: the subject to erase
        classes: the erasure guard of each agent class, by name
    """

    def __init__(self, subject_id: str, classes: Mapping[str, ErasureGuard]) -> None:
        self._subject_id = subject_id
        self._guards = [(each, memory_namespace(name, subject_id)) for name, each in classes.items()]
        self.is_erasing = False
        """Whether the erasure has started. The key may then be destroyed, so calls stay refused until the erasure completes."""

    async def begin(self) -> None:
        """Refuses new calls for the subject, and returns when no turn of the subject runs."""
        for each, namespace in self._guards:
            await each.begin(self._subject_id, namespace)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        has_ended = kind is None or not self.is_erasing or issubclass(kind, UnknownSubject)
        for each, namespace in self._guards:
            each.forget(self._subject_id)
            if has_ended:
                each.end(self._subject_id, namespace)
        # These caches do not know whose text they contain, so they are cleared completely.
        forget_words()


async def erase_subject(
    subject_id: str,
    *,
    config: RuntimeConfig | str | Path | None = None,
    root: str | Path | None = None,
    clock: Clock | None = None,
) -> ErasureReport:
    """Erases a subject while no runtime has the ledgers open. In a running program, use `Runtime.erase_subject`.

    A second call, or the next `open_runtime`, completes an interrupted erasure.

    Args:
        subject_id: the subject to erase
        config: path of a `kitchener.toml`, or a `RuntimeConfig`; None: the embedded defaults
        root: overrides `plane_root`
        clock: the time of day; None: the system clock

    Raises:
        ConfigError: a setting is wrong, or there is no keyring
        UnknownSubject: there is no data of the subject to erase
        LedgerLocked: a process has the ledgers open; nothing was erased
        LedgerError, SealingError: the erasure is not complete; call again
    """
    check_erasable(subject_id)
    settings, clock = await anyio.to_thread.run_sync(settings_of, config, root), clock or SystemClock()
    async with open_stores(settings, clock=clock, sealer=sealer_of(settings)) as stores:
        return await erase(subject_id, stores, clock)


async def erase(subject_id: str, stores: Stores, clock: Clock) -> ErasureReport:
    """Erases a subject, or completes an interrupted erasure. Everything is durable when it returns.

    Args:
        subject_id: the subject to erase
        stores: the keyring and the ledgers
        clock: the time of day

    Raises:
        UnknownSubject: there is no data of the subject to erase
        SealingError: the key cannot be read or removed; nothing was erased
        LedgerWriteError: the key is destroyed, but the record could not be written; call again
    """
    check_erasable(subject_id)
    for ho2m in stores.supervisors.values():
        await check_keyring(ho2m, stores.keyring)
    lost_kid = None
    if await anyio.to_thread.run_sync(stores.keyring.kid_of, subject_id) is None:
        lost_kid = await _find_lost_kid(subject_id, stores)
    begin = partial(stores.keyring.begin_erasure, subject_id, iso_of(clock.time_us()), lost_kid=lost_kid)
    begun = await anyio.to_thread.run_sync(begin)
    if begun is None:
        return await _erased_before(subject_id, stores)
    return await _finish(begun, stores)


async def _finish(begun: Erasure, stores: Stores) -> ErasureReport:
    """Destroys the key, removes images, files and vectors, records the erasure, and removes the note, in this order."""
    subject_id = begun.subject_id
    await anyio.to_thread.run_sync(stores.keyring.destroy, subject_id)
    files = await anyio.to_thread.run_sync(stores.content.erase, subject_id)
    await anyio.to_thread.run_sync(erase_vectors, stores.indexes, subject_id)
    held = {name: await _sessions_of(begun, ho2m) for name, ho2m in stores.supervisors.items()}
    sessions = [session for each in held.values() for session in each]
    namespaces = [memory_namespace(name, subject_id) for name in held]
    artifacts = 0
    for memory in stores.memories:
        erased = await memory.erase_subject(
            subject_id,
            key_id=begun.kid,
            erased_at=begun.begun_at,
            sessions=[each.session_id for each in sessions],
            namespaces=namespaces,
        )
        artifacts += erased.artifacts
    for name, ho2m in stores.supervisors.items():
        await _record(begun, ho2m, held[name], artifacts)
    await anyio.to_thread.run_sync(stores.keyring.end_erasure, subject_id)
    return ErasureReport(
        subject_id=subject_id,
        key_id=begun.kid,
        erased_at=begun.begun_at,
        was_erased_before=False,
        sessions=len(sessions),
        turns=sum(each.turns for each in sessions),
        plain_turns=sum(each.plain_turns for each in sessions),
        artifacts=artifacts,
        files=files,
    )


@dataclass(slots=True)
class _Session:
    """The facts about one session of the subject, folded from its ledger."""

    session_id: str
    turns: int = 0
    plain_turns: int = 0
    completed: int = 0
    cost: CostSummary = field(default_factory=no_cost)
    end: SessionEndPayload | None = None

    def take(self, entry: StoredEntry) -> None:
        """Applies the session's next entry."""
        if entry.entry_type == events.TURN_STARTED:
            self.turns += 1
            self.plain_turns += isinstance(payload_as(TurnStartedPayload, entry.payload).get("user_message"), str)
        elif entry.entry_type == events.MESSAGE_IMPORTED:
            self.plain_turns += isinstance(payload_as(MessageImportedPayload, entry.payload).get("text"), str)
        elif entry.entry_type == events.TURN_COMPLETED:
            self.completed += 1
            add_cost(self.cost, payload_as(TurnCompletedPayload, entry.payload).get("cost_summary"))
        elif entry.entry_type == events.SESSION_END:
            self.end = payload_as(SessionEndPayload, entry.payload)

    def belongs_to(self, kid: str) -> bool:
        """Whether the session belongs to this erasure, and not to an earlier one with another key."""
        return self.end is None or self.end.get("key_id") in (None, kid)


async def _session_ids(subject_id: str, ho2m: LedgerClient) -> list[str]:
    """The ids of a subject's sessions with one agent class, oldest first."""
    starts = ho2m.read(key=SESSIONS_KEY, entry_type=events.SESSION_START)
    return [
        start.session_id
        async for start in starts
        if start.session_id is not None and payload_as(SessionStartPayload, start.payload).get("subject_id") == subject_id
    ]


async def _sessions_of(begun: Erasure, ho2m: LedgerClient) -> list[_Session]:
    found = []
    for session_id in await _session_ids(begun.subject_id, ho2m):
        session = _Session(session_id)
        async for entry in ho2m.read(session_id=session_id):
            session.take(entry)
        if session.belongs_to(begun.kid):
            found.append(session)
    return found


async def _record(begun: Erasure, ho2m: LedgerClient, sessions: Sequence[_Session], artifacts: int) -> None:
    """Appends the missing `SESSION_END` entries of one agent class, and then `SUBJECT_ERASED` if it is missing."""
    for session in sessions:
        if session.end is None:
            end: SessionEndPayload = {
                "v": events.VERSION,
                "session_id": session.session_id,
                "subject_id": begun.subject_id,
                "turn_count": session.completed,
                "total_cost": session.cost,
                "reason": "erased",
                "key_id": begun.kid,
            }
            await ho2m.write(LedgerEntry(events.SESSION_END, session.session_id, end))
    if not any(each.get("key_id") == begun.kid for each in await _records(begun.subject_id, ho2m)):
        erased: SubjectErasedPayload = {
            "v": events.VERSION,
            "subject_id": begun.subject_id,
            "key_id": begun.kid,
            "erased_at": begun.begun_at,
            "sessions": len(sessions),
            "turns": sum(each.turns for each in sessions),
            "artifacts": artifacts,
        }
        await ho2m.write(LedgerEntry(events.SUBJECT_ERASED, begun.subject_id, erased))
    await ho2m.commit()


async def _records(subject_id: str, ho2m: LedgerClient) -> list[SubjectErasedPayload]:
    """The recorded erasures of a subject, in one agent class."""
    found = ho2m.read(key=erased_index_key(subject_id))
    return [payload_as(SubjectErasedPayload, entry.payload) async for entry in found]


async def _erased_before(subject_id: str, stores: Stores) -> ErasureReport:
    """The report of the last erasure, from its records; raises UnknownSubject if there is none."""
    records = [each for ho2m in stores.supervisors.values() for each in await _records(subject_id, ho2m)]
    if not records:
        raise UnknownSubject(subject_id, await _why_unknown(subject_id, stores))
    newest = max(records, key=lambda each: (str(each.get("erased_at")), str(each.get("key_id"))))
    same = [each for each in records if each.get("key_id") == newest.get("key_id")]
    return ErasureReport(
        subject_id=subject_id,
        key_id=str(newest.get("key_id")),
        erased_at=str(newest.get("erased_at")),
        was_erased_before=True,
        sessions=sum(each.get("sessions", 0) for each in same),
        turns=sum(each.get("turns", 0) for each in same),
        artifacts=max(each.get("artifacts", 0) for each in same),
    )


async def _why_unknown(subject_id: str, stores: Stores) -> str:
    for ho2m in stores.supervisors.values():
        if await _session_ids(subject_id, ho2m):
            return "has no key: the entries about this subject were stored in plain text, so they cannot be erased"
    return "is not known: there is no key, no session and no erasure of this subject"


async def _find_lost_kid(subject_id: str, stores: Stores) -> str | None:
    """The id of a key whose file was removed without a recorded erasure; None: there is none."""
    for ho2m in stores.supervisors.values():
        recorded = {each.get("key_id") for each in await _records(subject_id, ho2m)}
        for session_id in await _session_ids(subject_id, ho2m):
            async for entry in ho2m.read(session_id=session_id):
                for value in entry.payload.values():
                    if (kid := sealing_key_id(value)) is not None and kid not in recorded:
                        return kid
    return None
