"""Turns queries into entries of one ledger: the reads that `LedgerClient` and `LedgerReader` share.

A read uses a snapshot, so its result does not change while a worker thread computes it. `index.query` searches the files; this
module adds the entries that are still in memory, and hands the results to the event loop in small batches.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Final, TypeVar

import anyio

from kitchener.errors import CallerError, LedgerClosed, LedgerError
from kitchener.lanes.thread_calls import to_end_in_thread
from kitchener.ledger.batched_questions import BatchedQuestions
from kitchener.ledger.format.imported import innermost
from kitchener.ledger.format.lines import NO_END, IndexKeys, Mark, StoredEntry
from kitchener.ledger.index.query import EntrySearch, Query
from kitchener.ledger.index.tail import other_key, session_key
from kitchener.ledger.verify.verification import VerifyReport, nothing_read, verify_part
from kitchener.records.index_keys import imported_entry_key
from kitchener.records.ref import Ref

T = TypeVar("T")
_BATCH_ENTRIES: Final = 256
_BATCH_BYTES: Final = 1 << 20
"""A thread call returns at most about this many entries and bytes."""


class Snapshot:
    """One ledger as it was at one moment. Its methods block, so they run in a worker thread.

    Args:
        files: searches the ledger's files
        end: where reading the files ends
        pending: the entries after `end`, which are in memory
    """

    __slots__ = ("_end", "_files", "_pending")

    def __init__(self, files: EntrySearch, end: Mark, pending: Sequence[StoredEntry] = ()) -> None:
        self._files, self._end, self._pending = files, end, pending

    def search(self, query: Query) -> Iterator[StoredEntry]:
        """The entries that match, ascending."""
        return chain(self._files.search(query, self._end), filter(query.matches, self._pending))

    def newest(self, query: Query, limit: int) -> list[StoredEntry]:
        """The last `limit` entries that match, ascending."""
        late = deque(filter(query.matches, self._pending), limit)
        missing = limit - len(late)
        return [*(self._files.newest(query, self._end, missing) if missing else ()), *late]

    def known_sessions(self, session_ids: Iterable[str]) -> set[str]:
        """The sessions among these that have entries; one index query for all."""
        queries = {session_key(each): Query(session_id=each) for each in session_ids}
        found = {each.session_id for each in self._files.known(queries, self._end)}
        wanted = {each.session_id for each in queries.values()}
        found |= wanted.intersection(entry.session_id for entry in self._pending)
        return {each for each in found if each is not None}

    def known_keys(self, keys: Iterable[str]) -> set[str]:
        """The keys among these that have entries; one index query for all."""
        queries = {other_key(each): Query(key=each) for each in keys}
        found = {each.key for each in self._files.known(queries, self._end)}
        wanted = {each.key for each in queries.values()}
        found |= wanted.intersection(key for entry in self._pending for key in entry.keys)
        return {each for each in found if each is not None}

    def of_keys(self, keys: Collection[str]) -> dict[str, list[StoredEntry]]:
        """The entries of each key, ascending, by key; one index query for all."""
        found = self._files.of_keys(keys, self._end)
        for entry in self._pending:
            for key in found.keys() & entry.keys:
                found[key].append(entry)
        return found

    def last_of(self, keys: Iterable[str]) -> dict[str, StoredEntry]:
        """The newest entry of each key, by key; keys without entries are left out."""
        wanted = set(keys)
        found = {key: entry for entry in self._pending for key in entry.keys if key in wanted}
        for key in wanted.difference(found):
            earlier = self._files.newest(Query(key=key), self._end, 1)
            if earlier:
                found[key] = earlier[-1]
        return found

    def verify(self, from_seq: int) -> VerifyReport:
        """Verifies the entries in the files, from `from_seq` or from a stop shortly before it."""
        files = self._files
        return verify_part(files.volume, files.ledger_id, files.find_stop(from_seq - 1), self._end.offset)


class Entries(AsyncIterator[StoredEntry]):
    """Reads entries in small batches as a loop asks for them. A caller may stop at any time.

    Not an async generator, because a caller that stops early would have to close it.

    Args:
        entries: finds the entries; its steps block
        run: runs a step in the ledger's thread, one at a time
    """

    def __init__(self, entries: Iterator[StoredEntry], run: Callable[[Callable[[], None]], Awaitable[None]]) -> None:
        self._entries, self._run = entries, run
        self._ready: deque[StoredEntry] = deque()
        self._done = False
        self._failure: Exception | None = None

    async def __anext__(self) -> StoredEntry:
        if not self._ready:
            if not self._done:
                await self._run(self._read_batch)
            if not self._ready:
                self._done = True
                raise StopAsyncIteration
        return self._ready.popleft()

    def _read_batch(self) -> None:
        """Reads the next entries. They, or a failure, are kept here, for a loop that goes on after a timeout."""
        if self._failure is not None:
            raise self._failure
        count = size = 0
        try:
            for entry in self._entries:
                self._ready.append(entry)
                count, size = count + 1, size + len(entry.body)
                if count >= _BATCH_ENTRIES or size >= _BATCH_BYTES:
                    return
        except Exception as error:
            self._failure = error
            raise
        self._done = True


class LedgerReads(ABC):
    """The reads of an open ledger. A subclass decides which entries a read can return."""

    path: Path
    """The ledger's current file."""

    def __init__(self, path: Path, index_keys: IndexKeys | None) -> None:
        self.path = path
        self._index_keys = index_keys
        self._is_closed = False
        self._reads = anyio.CapacityLimiter(1)
        self._questions = BatchedQuestions(self._reads)

    @abstractmethod
    def _view(self, up_to_seq: int = NO_END) -> Callable[[], Snapshot | None]:
        """A snapshot of the entries, at least up to a number; runs in a worker thread. None: the ledger has no entry."""

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
        """The entries that meet all conditions, ascending.

        `LedgerClient` returns the entries as of this call, durable or not; `LedgerReader` returns the whole commits as of the
        first step of the iteration. The index finds the entries of a session or a key; every other query scans the file.

        Args:
            session_id: only entries of this session
            entity_id: only entries about this entity
            entry_type: only entries of this type, or of one of these types
            key: only entries with this index key
            after_seq: only entries with a higher number
            up_to_seq: only entries with this number or a lower one
            limit: at most this many, the oldest first; None: all

        Raises:
            LedgerDamaged: while iterating, a line differs from what was written
        """
        self._check_key(key)
        types = (entry_type,) if isinstance(entry_type, str) else entry_type
        last = NO_END if up_to_seq is None else up_to_seq
        query = Query(session_id, entity_id, None if types is None else frozenset(types), key, after_seq or 0, last)
        found = _searched(self._view(last), query)
        return Entries(found if limit is None else islice(found, limit), self._ask)

    async def last(self, *, session_id: str | None = None, key: str | None = None, limit: int = 1) -> list[StoredEntry]:
        """The newest `limit` entries of a session, of a key, or of the whole ledger, ascending."""
        self._check_key(key)
        return await self._seen([], lambda seen: seen.newest(Query(session_id=session_id, key=key), limit))

    async def get(self, seq: int) -> StoredEntry | None:
        """The entry with this number; None: there is none."""
        async for entry in self.read(after_seq=seq - 1, up_to_seq=seq):
            return entry
        return None

    async def find(self, ref: Ref) -> StoredEntry | None:
        """The entry that a reference names, also one that an import brought; None: this ledger does not have it.

        Without `index_keys`, an imported entry that only a replay reads is not found.
        """
        digits = ref.entry_id.rpartition("-")[2]
        entry = await self.get(int(digits)) if digits.isdecimal() else None
        if (entry is None or entry.ref != ref) and self._index_keys is not None:
            held = [innermost(each) async for each in self.read(key=imported_entry_key(ref.entry_id))]
            entry = next((each for each in held if each.ref == ref), None)
        return entry if entry is not None and entry.ref == ref else None

    async def known_sessions(self, session_ids: Iterable[str]) -> set[str]:
        """The sessions among these that have entries in this ledger; one index query for all."""
        wanted = tuple(session_ids)
        return await self._seen(set(), lambda seen: seen.known_sessions(wanted))

    async def known_keys(self, keys: Iterable[str]) -> set[str]:
        """The keys among these that have entries in this ledger; one index query for all."""
        wanted = tuple(keys)
        return await self._seen(set(), lambda seen: seen.known_keys(wanted))

    async def of_keys(self, keys: Iterable[str]) -> dict[str, list[StoredEntry]]:
        """All entries of each key, ascending, by key; found in one thread call, so their number must be small.

        Raises:
            LedgerDamaged: a line differs from what was written
        """
        wanted = list(dict.fromkeys(keys))
        for each in wanted:
            self._check_key(each)
        return await self._seen({each: [] for each in wanted}, lambda seen: seen.of_keys(wanted))

    async def last_of(self, keys: Iterable[str]) -> dict[str, StoredEntry]:
        """The newest entry of each key, by key, found in one thread call. Keys without entries are left out."""
        wanted = tuple(keys)
        return await self._seen({}, lambda seen: seen.last_of(wanted))

    async def verify(self, from_seq: int = 1) -> VerifyReport:
        """Recomputes every hash and number of the durable entries (`LedgerReader`: whole commits), from entry `from_seq` on."""
        return await self._in_thread(self._question(nothing_read(self.path), lambda seen: seen.verify(from_seq)))

    async def _seen(self, nothing: T, question: Callable[[Snapshot], T]) -> T:
        """The answer to a short question about the present entries; `nothing` if the ledger has no entry."""
        return await self._ask(self._question(nothing, question))

    def _question(self, nothing: T, question: Callable[[Snapshot], T]) -> Callable[[], T]:
        view = self._view()

        def answer() -> T:
            snapshot = view()
            return nothing if snapshot is None else question(snapshot)

        return answer

    async def _ask(self, question: Callable[[], T]) -> T:
        """The answer to a short question, in a call that other waiting questions share."""
        return await self._questions.ask(partial(self._unless_closed, question))

    async def _in_thread(self, action: Callable[[], T]) -> T:
        """The result of a long action, in a call of its own."""
        return await to_end_in_thread(partial(self._unless_closed, action), limiter=self._reads)

    def _unless_closed(self, action: Callable[[], T]) -> T:
        if self._is_closed:  # closing waits only for reads that have started
            raise self._refusal()
        return action()

    def _refusal(self) -> LedgerError:
        """Why the ledger cannot be used."""
        return LedgerClosed(f"{self.path}: the ledger was closed")

    def _check_key(self, key: str | None) -> None:
        if key is not None and self._index_keys is None:
            raise CallerError(f"entries cannot be found by key {key!r}: the ledger was opened without index_keys")


def _searched(view: Callable[[], Snapshot | None], query: Query) -> Iterator[StoredEntry]:
    snapshot = view()  # at the first step, which is in a worker thread
    if snapshot is not None:
        yield from snapshot.search(query)
