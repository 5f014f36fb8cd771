"""A ledger that is open for writing: number, stamp and hash entries at once, make them durable in shared rounds, read them.

What blocks is below, in `storage`, and runs in worker threads; when a round starts is decided in `group`. Explained in
`docs/ledger.md`.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
import orjson
import structlog
from anyio.abc import TaskGroup

from kitchener.canonical import NOTHING, Opening, canonical_bytes, digest
from kitchener.clock import Clock, SystemClock, iso
from kitchener.config import LedgerConfig
from kitchener.errors import (
    CallerError,
    EntryRefused,
    EntryTooLarge,
    LedgerClosed,
    LedgerError,
    LedgerWriteError,
    SigningError,
    StaleHead,
)
from kitchener.ids import EntryId
from kitchener.ledger.disk.file_ops import FileOps
from kitchener.ledger.disk.forking import watch
from kitchener.ledger.format.lines import ENVELOPE_BYTES, IndexKeys, LedgerEntry, StoredEntry, is_ledger_id, session_of
from kitchener.ledger.index.query import Entries, check_key, make_query
from kitchener.ledger.snapshot import Moment
from kitchener.ledger.verify.checkpoint import Checkpoint, sign_ledger
from kitchener.ledger.verify.recovery import Recovered
from kitchener.ledger.verify.verification import VerifyReport
from kitchener.ledger.write.commit_group import CommitGroup, plain_task_group
from kitchener.ledger.write.storage import Storage, open_storage
from kitchener.ledger.write.timestamps import Stamper
from kitchener.records.ref import Ref
from kitchener.sealing import Sealer
from kitchener.signing import load_signer

_log = structlog.get_logger(__name__)
T = TypeVar("T")
_CLOSE_SECONDS: Final = 30.0
"""Longest wait for the last commit when a ledger is closed: a disk that takes longer is taken for lost."""
_HEADS: Final = 16_384
"""Sessions whose last entry is remembered, twice over; others are looked up when they are asked for."""
_TYPES: Final = 256
"""Entry types whose JSON text is remembered."""


class LedgerClient:
    """One ledger, open for writing in this process and no other. Open it with `LedgerClient.open`."""

    ledger_id: str
    """Which ledger it is."""
    path: Path
    """Its file."""
    position: int
    """Number of the last entry, durable or not; 0 while there is none."""
    durable_position: int
    """Number of the last entry that is durable (as far as `durability` promises)."""

    def __init__(
        self, storage: Storage, config: LedgerConfig, stamper: Stamper, sealer: Sealer | None, keys: IndexKeys | None
    ) -> None:
        journal = storage.journal
        self.ledger_id, self.path = journal.ledger_id, journal.path
        self.config = config
        self.opened_from = storage.opened_from
        """How it was verified: `empty`, from the index's `checkpoint` on, or in `full`."""
        self.recovered: Recovered | None = journal.recovered
        """What opening it cut off; None: nothing."""
        self.position = self.durable_position = journal.tip.seq
        self._storage, self._stamper, self._sealer, self._index_keys = storage, stamper, sealer, keys
        self._opener = sealer.open if sealer is not None else None
        self._stored = journal.tip
        self._pending: list[StoredEntry] = []
        self._recent, self._older = dict[str, str](), dict[str, str]()
        self._watchers: dict[str, list[list[StoredEntry]]] = {}
        self._types, self._is_closed, self._stopped = dict[str, bytes](), False, False
        self._max_pending = config.max_pending_entries
        self._max_body = config.max_entry_bytes - ENVELOPE_BYTES - len(self.ledger_id)
        self._reads = anyio.CapacityLimiter(1)
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
        """The ledger at a path, made if it is not there; verified, recovered and locked until the block is left.

        Args:
            path: its file; missing directories are made
            ledger_id: what it is called: printable ASCII without bar, quote and backslash
            config: durability, sizes, what a clock may do
            clock: the time of day; None: the machine's
            index_dir: where its index lives; None: in `index` beside the file
            index_keys: pure; gives the keys under which an entry is found besides its session
            sealer: seals what subjects said; None: everything is stored plainly
            file_ops: the file system, for tests

        Raises:
            CallerError: the ledger id cannot be one
            LedgerLocked: another writer has it
            LedgerPathError: the path cannot hold a ledger
            LedgerDamaged: durable data does not verify (LedgerTailMissing: is gone)
            LedgerClockError: its last entry lies in the future
            LedgerWriteError: at the end of the block, what was written last could not be made durable
        """
        path, config, clock = Path(path), config or LedgerConfig(), clock or SystemClock()
        storage, stamper = await anyio.to_thread.run_sync(
            partial(
                _open_files,
                path,
                ledger_id,
                index_dir=Path(index_dir) if index_dir is not None else path.parent / "index",
                ops=file_ops or FileOps(),
                index_keys=index_keys,
                opener=sealer.open if sealer is not None else None,
                config=config,
                clock=clock,
            )
        )
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
        """Appends an entry and returns its reference. Readers of this process see it at once; `commit` makes it durable.

        Waits only while too many entries are pending, for a key that is not at hand, or for an expected head that is not.

        Args:
            entry: what to write; the payload may be changed afterwards
            expected_head: the entry id of the last entry that the payload's session has here, "" where it has none

        Raises:
            EntryRefused: the entry has no canonical form; nothing was written
            EntryTooLarge: it exceeds `max_entry_bytes`; nothing was written
            StaleHead: the session's last entry is another one; nothing was written
            LedgerClockError: the clock leapt ahead; nothing was written
            LedgerWriteError: an earlier commit failed
            LedgerClosed: the ledger was closed
        """
        if len(self._pending) >= self._max_pending:
            await self._make_room(1)
        if self._sealer is not None and not self._sealer.is_ready(entry.entry_type, entry.payload):
            await anyio.to_thread.run_sync(self._sealer.make_ready, entry.payload)
        if expected_head is not None:
            await self._check_head(entry.payload, expected_head)
        return self._append(entry)

    async def write_all(self, entries: Sequence[LedgerEntry]) -> list[StoredEntry]:
        """Appends entries in one commit, so that a crash leaves all or none; returns them. Raises as `write`; none stays."""
        for entry in entries:
            if self._sealer is not None and not self._sealer.is_ready(entry.entry_type, entry.payload):
                await anyio.to_thread.run_sync(self._sealer.make_ready, entry.payload)
        await self._make_room(len(entries))
        before = self.position
        try:
            for entry in entries:
                self._append(entry)
        except BaseException:
            self._take_back(before)
            raise
        written = self._pending[len(self._pending) - len(entries) :]
        for stored in written[:-1]:
            stored.is_joined = True
        return written

    async def commit(self) -> None:
        """Returns when all that this caller wrote, or read, in the ledgers of this group is durable.

        Cancelled while waiting: the commit goes on, and whether it succeeds is unknown to the caller.

        Raises:
            LedgerWriteError: it could not be written; what was waiting may or may not be stored
        """
        if self._is_closed or self._storage.journal.is_forked:
            raise self._refusal()
        await self._group.commit()

    def request_commit(self) -> None:
        """Sees to it that what was written becomes durable soon, without waiting for it."""
        if not self._stopped:
            self._group.request()

    def read(
        self,
        *,
        session_id: str | None = None,
        entity_id: str | None = None,
        entry_type: str | tuple[str, ...] | None = None,
        key: str | None = None,
        after_seq: int | None = None,
        up_to_seq: int | None = None,
        limit: int | None = None,
    ) -> Entries:
        """The entries that meet all conditions, ascending, as of this call; durable or not.

        A session's entries, and those of a key, are found without looking at others; everything else scans the file.

        Args:
            session_id: only this session's
            entity_id: only those about this
            entry_type: only of this type, or of one of these
            key: only those with this index key
            after_seq: only later ones
            up_to_seq: only up to this one
            limit: the first so many

        Raises:
            LedgerDamaged: while iterating, a line is not what was written
        """
        check_key(key, self._index_keys)
        query = make_query(
            session_id=session_id,
            entity_id=entity_id,
            entry_type=entry_type,
            key=key,
            after_seq=after_seq,
            up_to_seq=self.position if up_to_seq is None else min(up_to_seq, self.position),
        )
        # Entries in memory are copied only where they can be wanted.
        pending = self._pending[:] if query.up_to_seq > self._stored.seq else ()
        found = Moment(self._storage, self._stored, pending).search(query)
        return Entries(found if limit is None else islice(found, limit), self._in_thread)

    async def last(self, *, session_id: str | None = None, key: str | None = None, limit: int = 1) -> list[StoredEntry]:
        """The newest entries of a session, of a key, or of all, ascending."""
        check_key(key, self._index_keys)
        query = make_query(session_id=session_id, key=key, up_to_seq=self.position)
        moment = self._now()
        return await self._in_thread(lambda: moment.newest(query, limit))

    async def known_sessions(self, session_ids: Iterable[str]) -> set[str]:
        """Which of these sessions have entries here; one look-up for all of them."""
        return await self._in_thread(partial(self._now().known_sessions, tuple(session_ids)))

    async def known_keys(self, keys: Iterable[str]) -> set[str]:
        """Which of these keys have entries here; one look-up for all of them."""
        return await self._in_thread(partial(self._now().known_keys, tuple(keys)))

    async def last_of(self, keys: Iterable[str]) -> dict[str, StoredEntry]:
        """The newest entry of each of these keys, by key; one visit for all of them. Keys without entries are left out."""
        return await self._in_thread(partial(self._now().last_of, tuple(keys)))

    async def get(self, seq: int) -> StoredEntry | None:
        """The entry with a number, or None if there is none."""
        async for entry in self.read(after_seq=seq - 1, up_to_seq=seq):
            return entry
        return None

    @contextmanager
    def watch(self, session_id: str) -> Iterator[list[StoredEntry]]:
        """A list to which every entry of the session is appended as it is written, until the block is left."""
        entries: list[StoredEntry] = []
        watchers = self._watchers.setdefault(session_id, [])
        watchers.append(entries)
        try:
            yield entries
        finally:
            # By identity: two watchers may hold equal lists.
            watchers[:] = [each for each in watchers if each is not entries]
            if not watchers and self._watchers.get(session_id) is watchers:
                del self._watchers[session_id]

    @property
    def last_timestamp(self) -> str:
        """ISO time of the last entry, durable or not; that of the epoch while there is none."""
        return self._stamper.last

    def head(self) -> tuple[int, str]:
        """Number and chain hash of the last durable entry; `(0, "sha256:00…")` while there is none."""
        return self._stored.seq, f"sha256:{self._stored.chain}"

    async def verify(self, from_seq: int = 1) -> VerifyReport:
        """Recomputes every hash and number of what is durable, from an entry on."""
        end = self._stored
        return await self._in_thread(lambda: self._storage.verify(from_seq, end))

    async def checkpoint(self) -> Checkpoint | None:
        """Commits, signs the head with the configured key, and keeps it in `<file>.checkpoint`; None while there is no entry.

        Everything since the last signed head is verified first, and that head must be in the chain.

        Raises:
            SigningError: no key is configured, or it cannot be used
            LedgerDamaged: the file is not what was written; nothing is signed
            LedgerWriteError: what was written last, or the head, could not be made durable
        """
        key = self.config.signing_key
        if key is None:
            raise SigningError(
                f"{self.path}: no key to sign with: set signing_key in [ledger]; see `kitchener ledger key --new`"
            )
        await self.commit()
        time_us, find_stop = self._stamper.time_us, self._storage.find_stop
        return await self._in_thread(lambda: sign_ledger(self.path, load_signer(key), iso(time_us()), find_stop))

    def content_digest(self, subject_id: str, data: bytes, opening: Opening = NOTHING) -> str:
        """`sha256:…` of an opening and what follows it, or, where content is sealed, `hmac-sha256:…` under the subject's key.

        May read or make the subject's key file, once.
        """
        if self._sealer is None:
            return opening.digest(data)
        return self._sealer.content_digest(subject_id, opening.data + data)

    # What follows is for the commit group.

    def cut(self) -> Sequence[StoredEntry]:
        """All entries that are not known to be durable."""
        return self._pending[:]

    def flush(self, entries: Sequence[StoredEntry], *, sync: bool) -> None:
        """Writes those that are not written yet; in a worker thread."""
        self._storage.flush(entries, sync=sync)

    def note(self) -> None:
        """Brings the index up to what was flushed; in a worker thread."""
        self._storage.note()

    def settle(self) -> None:
        """Takes note of what is durable now."""
        flushed = self._storage.flushed
        if flushed.seq != self._stored.seq:
            self._stored = flushed
            self.durable_position = flushed.seq
            del self._pending[: flushed.seq + 1 - self._pending[0].seq]

    def poison(self, problem: str) -> None:
        """Takes no more entries."""
        self._storage.journal.poison(problem)
        self._stopped = True

    def join(self, group: CommitGroup, *, is_shared: bool) -> None:
        """From now on this ledger is committed with others; a shared one keeps its own rounds as well."""
        group.host(self._host)
        self._groups.append(group)
        if not is_shared:
            self._group = group

    async def _make_room(self, count: int) -> None:
        # More than may be pending at all wait for an empty queue.
        while self._pending and len(self._pending) + count > self._max_pending and not self._stopped:
            await self._group.commit(force=True)

    def _append(self, entry: LedgerEntry) -> Ref:
        if self._stopped:
            raise self._refusal()
        entry_type, entity_id, payload = entry
        if not isinstance(payload, dict):
            raise EntryRefused("payload", f"{type(payload).__name__} is not a JSON object")
        ledger_id = self.ledger_id
        if self._sealer is not None:
            payload = self._sealer.seal(ledger_id, entry_type, payload)
        type_text = self._types.get(entry_type) or self._type_text(entry_type)
        is_simple = type(entity_id) is str and entity_id.isascii()
        entity_text = orjson.dumps(entity_id) if is_simple else _text(entity_id, "entity_id")
        payload_text = canonical_bytes(payload, at="payload")
        session_id = payload.get("session_id")
        if type(session_id) is not str:
            session_id = session_of(payload)
        keys = self._index_keys(entry_type, payload) if self._index_keys is not None else ()
        timestamp = self._stamper.stamp()
        # Joined, as numbers are filled, because formatting takes twice as long. A type comes with the keys around it.
        body = b"".join((b'{"entity_id":', entity_text, type_text, payload_text, b',"timestamp":"', timestamp.encode(), b'"}'))
        if len(body) > self._max_body:
            size = len(body) + ENVELOPE_BYTES + len(ledger_id)
            raise EntryTooLarge(ledger_id, entry_type, size, self.config.max_entry_bytes)
        seq = self.position = self.position + 1
        entry_id = self._stamper.id_start + str(seq).zfill(12)
        entry_hash = digest(body)
        stored = StoredEntry(
            ledger_id, seq, entry_id, entry_hash, entry_type, entity_id, timestamp, body, session_id, keys, self._opener
        )
        self._pending.append(stored)
        if session_id is not None:
            self._recent[session_id] = entry_id
            if len(self._recent) > _HEADS:
                self._older, self._recent = self._recent, {}
            if self._watchers:
                for watcher in self._watchers.get(session_id, ()):
                    watcher.append(stored)
        return tuple.__new__(Ref, (ledger_id, entry_id, entry_hash))  # what Ref(…) does, in half the time

    def _take_back(self, position: int) -> None:
        """Forgets the entries after a position. Nobody has seen them: nothing was awaited since they were appended."""
        while self.position > position:
            session_id = self._pending.pop().session_id or ""
            self.position -= 1
            for heads in (self._recent, self._older):
                heads.pop(session_id, None)
            for watcher in self._watchers.get(session_id, ()):
                watcher.pop()

    def _type_text(self, entry_type: str) -> bytes:
        text = b',"entry_type":' + _text(entry_type, "entry_type") + b',"payload":'
        if len(self._types) < _TYPES:
            self._types[entry_type] = text
        return text

    async def _check_head(self, payload: dict[str, Any], expected: str) -> None:
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

    def _now(self) -> Moment:
        return Moment(self._storage, self._stored, self._pending[:])

    async def _in_thread(self, action: Callable[[], T]) -> T:
        def checked() -> T:
            if self._is_closed:  # closing waits for reads, but not for those that have not begun
                raise self._refusal()
            return action()

        return await anyio.to_thread.run_sync(checked, limiter=self._reads)

    def _refusal(self) -> LedgerError:
        if self._is_closed:
            return LedgerClosed(f"{self.path}: ledger {self.ledger_id} was closed")
        return LedgerWriteError(str(self.path), self._storage.journal.problem or "an earlier commit failed")

    async def _close(self, *, is_failing: bool) -> None:
        """Commits what is pending and gives the file back; raises LedgerWriteError, unless something else is being raised."""
        self._is_closed = self._stopped = True
        if self._storage.journal.is_forked:
            return  # all that would be closed here is the parent's
        failure: LedgerWriteError | None = None
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            try:
                await self._group.commit(force=True)
            except LedgerWriteError as error:
                failure = error
            for group in self._groups:
                await group.leave(self, self._host)
            await anyio.to_thread.run_sync(self._storage.close, limiter=self._reads)
        if failure is not None:
            if not is_failing:
                raise failure
            _log.error("ledger closed with entries that could not be written", path=str(self.path), problem=failure.problem)


def _open_files(path: Path, ledger_id: str, *, config: LedgerConfig, clock: Clock, **places: Any) -> tuple[Storage, Stamper]:
    """The ledger on disk, verified, recovered and locked, and what gives its entries their time; see `LedgerClient.open`."""
    if not is_ledger_id(ledger_id):
        raise CallerError(f"ledger id {ledger_id!r}: it takes 1 to 1024 printable ASCII characters, no bar, quote or backslash")
    storage = open_storage(path, ledger_id, config=config, time_us=clock.time_us(), **places)
    try:
        return storage, Stamper(ledger_id, clock, config, storage.journal.tip.timestamp)
    except BaseException:
        storage.abandon()
        raise


def _text(value: str, at: str) -> bytes:
    """The JSON of some text."""
    if not isinstance(value, str):
        raise EntryRefused(at, f"{type(value).__name__} is not text")
    try:
        return orjson.dumps(value)
    except TypeError:
        return canonical_bytes(value, at=at)  # says what is wrong with it
