"""Turns entries into numbered, timestamped and hashed lines, makes them durable in shared commit rounds, and reads them back.

`write.storage` does the blocking work, in worker threads; `write.commit_group` decides when a round starts. Explained in
`docs/ledger.md`.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import TaskGroup

from kitchener.canonical import NOTHING, Opening, digest
from kitchener.clock import Clock, SystemClock
from kitchener.config import LedgerConfig
from kitchener.errors import (
    CallerError,
    EntryRefused,
    EntryTooLarge,
    LedgerError,
    LedgerWriteError,
    SigningError,
    StaleHead,
)
from kitchener.ids import EntryId
from kitchener.lanes.thread_calls import in_own_task, opened_in_thread
from kitchener.ledger.disk.file_ops import FileOps
from kitchener.ledger.disk.fork_guard import watch
from kitchener.ledger.format.lines import (
    ENVELOPE_BYTES,
    NO_END,
    IndexKeys,
    LedgerEntry,
    StoredEntry,
    body_of,
    entry_id_of,
    is_ledger_id,
    session_of,
)
from kitchener.ledger.index.index_dirs import index_dir_of
from kitchener.ledger.reads import LedgerReads, Snapshot
from kitchener.ledger.verify.checkpoint import Checkpoint, sign_ledger
from kitchener.ledger.verify.recovery import Recovered
from kitchener.ledger.write.commit_group import CommitGroup, plain_task_group
from kitchener.ledger.write.stamper import Stamper
from kitchener.ledger.write.storage import Storage, open_storage
from kitchener.logs import get_logger
from kitchener.records.ref import Ref
from kitchener.sealing import Sealer
from kitchener.signing import load_signer
from kitchener.times import iso_of

_log = get_logger(__name__)
_CLOSE_SECONDS: Final = 30.0
"""Longest wait for the last commit when a ledger closes; a disk that takes longer counts as failed."""
_HEADS: Final = 16_384
"""Most sessions whose last entry is cached, in each of two generations; checked after each commit. The last entry of any other
session is looked up."""


class _Watch(AbstractContextManager[list[StoredEntry]]):
    """Adds a list to the watchers of a session until the block ends."""

    __slots__ = ("_entries", "_session_id", "_watchers")

    def __init__(self, watchers: dict[str, list[list[StoredEntry]]], session_id: str, entries: list[StoredEntry]) -> None:
        self._watchers, self._session_id, self._entries = watchers, session_id, entries

    def __enter__(self) -> list[StoredEntry]:
        self._watchers.setdefault(self._session_id, []).append(self._entries)
        return self._entries

    def __exit__(self, *_: object) -> None:
        # By identity: two watchers may hold equal lists.
        others = [each for each in self._watchers.pop(self._session_id, ()) if each is not self._entries]
        if others:
            self._watchers[self._session_id] = others


class LedgerClient(LedgerReads):
    """One ledger, open for writing in this process only. Open it with `LedgerClient.open`."""

    ledger_id: str
    """The ledger's name, which every entry carries."""
    position: int
    """Number of the last entry, durable or not; 0 while there is none."""
    durable_position: int
    """Number of the last durable entry; the setting `durability` says what durable means."""

    def __init__(
        self, storage: Storage, config: LedgerConfig, stamper: Stamper, sealer: Sealer | None, keys: IndexKeys | None
    ) -> None:
        journal = storage.journal
        super().__init__(journal.path, keys)
        self.ledger_id = journal.ledger_id
        self.config = config
        self.opened_from: str = storage.opened_from
        """How opening verified the ledger: it was `empty`, verified from the index's `checkpoint` on, or in `full`."""
        self.recovered: Recovered | None = journal.recovered
        """The bytes that opening cut off the file; None: nothing was cut."""
        self.position = self.durable_position = journal.tip.seq
        self.storage = storage
        """The blocking part, for the commit group."""
        self.pending: list[StoredEntry] = []
        """The entries that are not known to be durable, for the commit group."""
        self._stamper, self._sealer = stamper, sealer
        self._sealers = dict.fromkeys(sealer.sealed_types, sealer) if sealer is not None else {}
        """What encrypts entries, by the types that may have something to encrypt."""
        self._opener = sealer.open if sealer is not None else None
        self._stored = journal.tip
        self._recent, self._older = dict[str, str](), dict[str, str]()
        self._watchers: dict[str, list[list[StoredEntry]]] = {}
        self._stopped = False
        self._max_pending = config.max_pending_entries
        self._max_body = config.max_entry_bytes - ENVELOPE_BYTES - len(self.ledger_id)
        self._group = CommitGroup((self,), config)
        self._groups = [self._group]
        self._host: TaskGroup
        watch(self)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        path: Path | str,
        *,
        ledger_id: str,
        config: LedgerConfig | None = None,
        clock: Clock | None = None,
        index_dir: Path | str | None = None,
        index_keys: IndexKeys | None = None,
        sealer: Sealer | None = None,
        file_ops: FileOps | None = None,
    ) -> AsyncIterator["LedgerClient"]:
        """Verifies, recovers and locks the ledger at a path until the block ends. Creates a missing ledger.

        Args:
            path: the ledger's file; missing directories are created
            ledger_id: the ledger's name: printable ASCII without bar, quote and backslash
            config: durability, size limits and clock limits; None: the defaults
            clock: the time of day; None: the system clock
            index_dir: directory of the index; None: `index` beside the file
            index_keys: pure; gives the keys, besides the session, under which an entry can be found
            sealer: encrypts the words of subjects; None: everything is stored in plain text
            file_ops: the file system; tests replace it

        Raises:
            CallerError: the ledger id is not valid
            LedgerLocked: another writer has the ledger open
            LedgerPathError: the path cannot hold a ledger
            LedgerDamaged: durable data does not verify (LedgerTailMissing: durable data is missing)
            LedgerClockError: the timestamp of the last entry lies in the future
            LedgerWriteError: at the end of the block, the last entries could not be made durable
        """
        path, config, clock = Path(path), config or LedgerConfig(), clock or SystemClock()
        if not is_ledger_id(ledger_id):
            raise CallerError(
                f"ledger id {ledger_id!r}: expected 1 to 1024 printable ASCII characters, no bar, quote or backslash"
            )

        def open_files() -> tuple[Storage, Stamper]:
            storage = open_storage(
                path,
                ledger_id,
                index_dir=Path(index_dir) if index_dir is not None else index_dir_of(path.parent),
                ops=file_ops or FileOps(),
                index_keys=index_keys,
                opener=sealer.open if sealer is not None else None,
                config=config,
                time_us=clock.time_us(),
            )
            try:
                return storage, Stamper(ledger_id, clock, config, storage.journal.tip.timestamp)
            except BaseException:
                storage.abandon()
                raise

        storage, stamper = await opened_in_thread(open_files, lambda opened: opened[0].abandon())
        client = cls(storage, config, stamper, sealer, index_keys)
        async with plain_task_group() as tasks:
            client._host = tasks
            client._group.host(tasks)
            try:
                yield client
            except BaseException:
                await client._close(is_failing=True)
                raise
            await client._close(is_failing=False)

    async def write(self, entry: LedgerEntry, *, expected_head: EntryId | None = None) -> Ref:
        """Appends an entry and returns its reference. Readers in this process see it at once; `commit` makes it durable.

        Waits only while too many entries are pending, to load a subject's key, or to look up a head that is not cached.

        Args:
            entry: the entry; the caller may change the payload afterwards
            expected_head: entry id of the session's last entry in this ledger, "" for none; None: not checked

        Raises:
            EntryRefused: the entry has no canonical form; nothing was written
            EntryTooLarge: the entry exceeds `max_entry_bytes`; nothing was written
            StaleHead: the session's last entry is a different one; nothing was written
            LedgerClockError: the clock jumped ahead; nothing was written
            LedgerWriteError: an earlier commit failed
            LedgerClosed: the ledger was closed
        """
        while len(self.pending) >= self._max_pending and not self._stopped:
            await self._group.commit(force=True)
        await _load_key(self._sealers.get(entry.entry_type), entry)
        if expected_head is not None:
            await self._check_head(entry.payload, expected_head)
        stored = self._encode(entry, self.position + 1)
        self._enqueue(stored)
        return stored.ref

    async def write_all(self, entries: Sequence[LedgerEntry], *, expected_head: EntryId | None = None) -> list[StoredEntry]:
        """Appends entries in one commit and returns them; a crash leaves all or none. Raises as `write`, with none written.

        Args:
            entries: the entries, in order
            expected_head: as of `write`, for the session of the first entry
        """
        for entry in entries:
            await _load_key(self._sealers.get(entry.entry_type), entry)
        # A batch larger than the limit waits for an empty queue.
        while self.pending and len(self.pending) + len(entries) > self._max_pending and not self._stopped:
            await self._group.commit(force=True)
        if expected_head is not None:
            await self._check_head(entries[0].payload, expected_head)
        written = [self._encode(entry, seq) for seq, entry in enumerate(entries, self.position + 1)]
        for stored in written:
            self._enqueue(stored)
        for stored in written[:-1]:
            stored.is_joined = True
        return written

    async def commit(self) -> None:
        """Returns when all that this caller wrote, or read, in the ledgers of this group is durable.

        Cancelled while waiting: the commit continues, and the caller does not learn whether it succeeds.

        Raises:
            LedgerWriteError: the commit failed; the pending entries may or may not be stored
        """
        if self._is_closed or self.storage.journal.is_forked:
            raise self._refusal()
        await self._group.commit()

    def request_commit(self) -> None:
        """Requests a commit within `linger_ms`, or with the next `commit`, and does not wait for it."""
        if not self._stopped:
            self._group.request()

    def watch(self, session_id: str, entries: list[StoredEntry] | None = None) -> AbstractContextManager[list[StoredEntry]]:
        """A list that receives every entry of the session as it is written, until the block ends.

        Args:
            session_id: the session
            entries: the list; None: a new one
        """
        return _Watch(self._watchers, session_id, [] if entries is None else entries)

    @property
    def last_timestamp(self) -> str:
        """ISO time of the last entry, durable or not; the Unix epoch while there is none."""
        return self._stamper.last

    def head(self) -> tuple[int, str]:
        """Number and chain hash of the last durable entry; `(0, "sha256:00…")` while there is none."""
        return self._stored.seq, f"sha256:{self._stored.chain}"

    async def checkpoint(self) -> Checkpoint | None:
        """Commits, signs the head with the configured key, and stores it in `<file>.checkpoint`; None while there is no entry.

        First verifies everything since the last signed head, and checks that the chain contains that head.

        Raises:
            SigningError: no key is configured, or the key cannot be used
            LedgerDamaged: the file differs from what was written; nothing is signed
            LedgerWriteError: the last entries, or the head, could not be made durable
        """
        key = self.config.signing_key
        if key is None:
            raise SigningError(
                f"{self.path}: no key to sign with: set signing_key in [ledger]; see `kitchener ledger key --new`"
            )
        await self.commit()
        time_us, find_stop = self._stamper.time_us, self.storage.search.find_stop
        return await self._in_thread(lambda: sign_ledger(self.path, load_signer(key), iso_of(time_us()), find_stop))

    def content_digest(self, subject_id: str, data: bytes, opening: Opening = NOTHING) -> str:
        """`sha256:…` of an opening and the data after it; if content is sealed, `hmac-sha256:…` under the subject's key.

        The first call for a subject may read or create the subject's key file.
        """
        if self._sealer is None or not self._sealer.seals:
            return opening.digest(data)
        return self._sealer.content_digest(subject_id, data, opening)

    # The commit group calls the following methods.

    def settle(self) -> None:
        """Moves `durable_position` to the last flushed entry and drops the pending entries up to it."""
        flushed = self.storage.flushed
        if flushed.seq != self._stored.seq:
            self._stored = flushed
            self.durable_position = flushed.seq
            if len(self._recent) > _HEADS:
                self._older, self._recent = self._recent, {}
            del self.pending[: flushed.seq + 1 - self.pending[0].seq]

    def poison(self, problem: str) -> None:
        """Refuses every further entry, with this problem as the reason."""
        self.storage.journal.poison(problem)
        self._stopped = True

    def join(self, group: CommitGroup, *, is_shared: bool) -> None:
        """Commits this ledger with the group from now on; a shared ledger also keeps its own rounds."""
        group.host(self._host)
        self._groups.append(group)
        if not is_shared:
            self._group = group

    def _encode(self, entry: LedgerEntry, seq: int) -> StoredEntry:
        """The entry with its number, time, canonical bytes and hash."""
        if self._stopped:
            raise self._refusal()
        entry_type, entity_id, payload = entry
        if not isinstance(payload, dict):
            raise EntryRefused("payload", f"{type(payload).__name__} is not a JSON object")
        ledger_id, sealer = self.ledger_id, self._sealers.get(entry_type)
        if sealer is not None:
            payload = sealer.seal(ledger_id, entry_type, payload)
        timestamp = self._stamper.stamp()
        body = body_of(entry_type, entity_id, payload, timestamp)
        if len(body) > self._max_body:
            size = len(body) + ENVELOPE_BYTES + len(ledger_id)
            raise EntryTooLarge(ledger_id, entry_type, size, self.config.max_entry_bytes)
        session_id = payload.get("session_id")
        return StoredEntry(
            ledger_id,
            seq,
            entry_id_of(timestamp[:10], seq),
            digest(body),
            entry_type,
            entity_id,
            timestamp,
            body,
            session_id if isinstance(session_id, str) else None,
            self._index_keys(entry_type, payload) if self._index_keys is not None else (),
            self._opener,
        )

    def _enqueue(self, stored: StoredEntry) -> None:
        """Makes an entry visible to readers of this process; the next commit writes it."""
        self.position = stored.seq
        self.pending.append(stored)
        session_id = stored.session_id
        if session_id is not None:
            self._recent[session_id] = stored.entry_id
            for watcher in self._watchers.get(session_id, ()):
                watcher.append(stored)

    async def _check_head(self, payload: Mapping[str, object], expected: str) -> None:
        session_id = session_of(payload)
        if session_id is None:
            raise EntryRefused("payload.session_id", "an expected head needs the session whose head it is")
        found = self._recent.get(session_id) or self._older.get(session_id)
        if found is None:
            with self.watch(session_id) as written:
                newest = await self.last(session_id=session_id)
                newest.extend(written)
            found = newest[-1].entry_id if newest else ""
        if found != expected:
            raise StaleHead(self.ledger_id, session_id, expected or "none", found or "none")

    def _view(self, up_to_seq: int = NO_END) -> Callable[[], Snapshot]:
        # Pending entries are copied only where the query can match them.
        pending = self.pending[:] if up_to_seq > self._stored.seq else ()
        snapshot = Snapshot(self.storage.search, self._stored, pending)
        return lambda: snapshot

    def _refusal(self) -> LedgerError:
        if self._is_closed:
            return super()._refusal()
        return LedgerWriteError(str(self.path), self.storage.journal.problem or "an earlier commit failed")

    async def _close(self, *, is_failing: bool) -> None:
        """Commits pending entries and closes the file; raises LedgerWriteError unless another exception is already raised."""
        self._is_closed = self._stopped = True
        if self.storage.journal.is_forked:
            return  # a forked child: the file and the lock belong to the parent

        async def commit_and_close() -> LedgerWriteError | None:
            failure: LedgerWriteError | None = None
            with anyio.move_on_after(_CLOSE_SECONDS):
                try:
                    await self._group.commit(force=True)
                except LedgerWriteError as error:
                    failure = error
                for group in self._groups:
                    await group.leave(self, self._host)
                await anyio.to_thread.run_sync(self.storage.close, limiter=self._reads)
            return failure

        failure = await in_own_task(commit_and_close)
        if failure is not None:
            if not is_failing:
                raise failure
            _log.error("ledger closed with entries that could not be written", path=str(self.path), problem=failure.problem)


def abandon_ledgers(opened: Iterable[LedgerClient]) -> None:
    """Writes what was not committed yet and closes ledgers whose event loop has been closed: no task of theirs can run. Blocks.

    Args:
        opened: the ledgers, in the order in which they become durable; some may be named twice, or be closed already

    Raises:
        LedgerWriteError: the last entries could not be written; the ledgers are closed all the same
    """
    ledgers = [each for each in dict.fromkeys(opened) if not (each._is_closed or each.storage.journal.is_forked)]
    with ExitStack() as closing:
        for ledger in ledgers:
            ledger._is_closed = ledger._stopped = True
            for group in ledger._groups:
                group.stop()
            closing.callback(ledger.storage.close)
        for ledger in ledgers:
            ledger.storage.flush(ledger.pending[:], sync=ledger.config.durability == "fsync")


async def _load_key(sealer: Sealer | None, entry: LedgerEntry) -> None:
    """Loads the subject's key that sealing this entry needs, unless it is cached."""
    if sealer is not None and (missing := sealer.missing_key(entry.entry_type, entry.payload)) is not None:
        await sealer.load_key(missing)
