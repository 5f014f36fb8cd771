"""Turns a query into the matching entries of a ledger, through the index if it helps and otherwise by a scan."""

import sqlite3
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Final, NamedTuple, Protocol, TypeVar

from kitchener.errors import LedgerDamaged
from kitchener.ledger.disk.scan import read_blocks
from kitchener.ledger.disk.volume import Volume
from kitchener.ledger.format.checks import Follower, VerifiedRun
from kitchener.ledger.format.imported import as_read
from kitchener.ledger.format.lines import (
    NO_END,
    START,
    BadLine,
    IndexKeys,
    Mark,
    Opener,
    StoredEntry,
    entry_id_of,
    make_entry,
    read_line,
    shown,
)
from kitchener.ledger.index.index import IndexedState, find_known, find_locations, find_newest, find_stop, next_stops
from kitchener.ledger.index.tail import HASH_DIGITS, Location, Tail, other_key, session_key
from kitchener.ledger.verify.verification import verify_part

T = TypeVar("T")
_RUN_BYTES: Final = 1 << 16
"""Adjacent entries are read in one call, up to about this many bytes."""
_HELD_BYTES: Final = 32 << 20
"""Scanned bytes held back until their chain reaches a known chain hash; more than two commits of the largest size."""


class Query(NamedTuple):
    """The conditions that entries must meet. A condition that is None always holds."""

    session_id: str | None = None
    entity_id: str | None = None
    entry_types: frozenset[str] | None = None
    key: str | None = None
    after_seq: int = 0
    up_to_seq: int = NO_END

    @property
    def index_key(self) -> str | None:
        """The index key that covers all matching entries, and perhaps others; None: only a scan finds them."""
        if self.key is not None:
            return other_key(self.key)
        return session_key(self.session_id) if self.session_id is not None else None

    def is_found_by_index(self, entry: StoredEntry) -> bool:
        """Whether an entry has the key that `index_key` looks up."""
        return self.key in entry.keys if self.key is not None else entry.session_id == self.session_id

    def matches(self, entry: StoredEntry) -> bool:
        """Whether an entry meets all conditions."""
        return (
            self.after_seq < entry.seq <= self.up_to_seq
            and (self.session_id is None or entry.session_id == self.session_id)
            and (self.key is None or self.key in entry.keys)
            and (self.entry_types is None or entry.entry_type in self.entry_types)
            and (self.entity_id is None or entry.entity_id == self.entity_id)
        )


class IndexAccess(Protocol):
    """Access to an index; one call at a time."""

    @property
    def tail(self) -> Tail | None:
        """Positions of the entries after the index; None: they are not in memory."""
        ...

    def ask(self, question: Callable[[sqlite3.Connection, IndexedState], T]) -> T | None:
        """The answer to a question; None: there is no usable index."""
        ...

    def distrust(self, reason: str) -> None:
        """Stops using an index that contradicts the file: `ask` then gives None and `tail` is None."""
        ...


class _IndexMismatch(Exception):
    """Index and file disagree about an entry; either may be wrong."""

    def __init__(self, seq: int, offset: int, fault: BadLine) -> None:
        super().__init__(str(fault))
        self.seq, self.offset, self.fault = seq, offset, fault


class EntrySearch:
    """Reads entries from a ledger's files, with the help of its index. Blocks.

    Checks every entry that it reads. An entry found by the index is compared with the hash in the index. Scanned lines must
    chain up to the next position with a known chain hash. If a check fails, the whole file is verified once, to find out
    whether the file or the index is wrong.

    Args:
        volume: the ledger's files
        ledger_id: the ledger's name
        index: the ledger's index
        index_keys: gives an entry's keys besides its session
        opener: decrypts sealed values
    """

    def __init__(
        self,
        volume: Volume,
        ledger_id: str,
        index: IndexAccess,
        index_keys: IndexKeys | None,
        opener: Opener | None,
    ) -> None:
        self.volume, self.ledger_id = volume, ledger_id
        self._index = index
        self._index_keys, self._opener = index_keys, opener
        self._damage: LedgerDamaged | None = None

    def search(self, query: Query, end: Mark) -> Iterator[StoredEntry]:
        """The entries before `end` that match, ascending.

        Raises:
            LedgerDamaged: a line is not what was written
        """
        query, last = query._replace(up_to_seq=min(query.up_to_seq, end.seq)), query.after_seq
        try:
            for entry in self._found(query, end):
                yield entry
                last = entry.seq
        except _IndexMismatch as misfit:
            self._settle(misfit, end)
        else:
            return
        yield from self._plain_scan(query._replace(after_seq=last), end)

    def of_keys(self, keys: Iterable[str], end: Mark) -> dict[str, list[StoredEntry]]:
        """The entries of each key before `end`, ascending; one index query for all. Raises as `search`."""
        queries = {key: Query(key=key, up_to_seq=end.seq) for key in keys}
        try:
            places, start = self._look_up(queries.values())
            return {
                key: [*self._entries_at(query, locations), *self._scan(query, start, end)]
                for (key, query), locations in zip(queries.items(), places, strict=True)
            }
        except _IndexMismatch as misfit:
            self._settle(misfit, end)
        return {key: list(self._plain_scan(query, end)) for key, query in queries.items()}

    def newest(self, query: Query, end: Mark, limit: int) -> list[StoredEntry]:
        """The last `limit` entries before `end` that match, ascending. Raises as `search`."""
        if query.session_id is not None and query.key is not None:
            return list(deque(self.search(query, end), limit))
        query = query._replace(up_to_seq=min(query.up_to_seq, end.seq))
        if query.index_key is None:
            query = query._replace(after_seq=max(query.after_seq, query.up_to_seq - limit))
            return list(self.search(query, end))
        try:
            return list(deque(self._found(query, end, limit), limit))
        except _IndexMismatch as misfit:
            self._settle(misfit, end)
        return list(deque(self._plain_scan(query, end), limit))

    def find_stop(self, seq: int) -> Mark:
        """A position at or before the end of entry `seq`, from which a scan for later entries can start."""
        tail = self._index.tail
        stop = tail.find_stop(seq) if tail is not None else None
        return stop or self._index.ask(lambda index, _: find_stop(index, seq)) or START

    def known(self, queries: Mapping[str, Query], end: Mark) -> list[Query]:
        """The queries among these that have entries before `end`; one index query for all.

        Args:
            queries: by the index key that finds all their entries
            end: where reading the files ends
        """
        # Ask the tail first: an entry that moves into the index meanwhile is then found twice, not missed.
        tail = self._index.tail
        late = {key for key in queries if tail is not None and tail.find(key, 0, NO_END)}
        early = self._index.ask(lambda index, known: find_known(index, known, queries.keys()))
        if early is None or tail is None:
            return [query for query in queries.values() if self.newest(query, end, 1)]
        return [queries[key] for key in late | early]

    def _found(self, query: Query, end: Mark, newest: int | None = None) -> Iterator[StoredEntry]:
        """The matching entries, found with the index; `newest` limits those that the index covers to the last so many.

        Raises:
            _IndexMismatch: index and file disagree
        """
        if query.index_key is None:
            yield from self._scan(query, self.find_stop(query.after_seq), end)
            return
        (locations,), start = self._look_up([query], newest)
        yield from self._entries_at(query, locations)
        yield from self._scan(query, start, end)

    def _settle(self, misfit: _IndexMismatch, end: Mark) -> None:
        """Verifies the file. If the file is right, stops using the index; otherwise raises LedgerDamaged."""
        if self._damage is None:
            report = verify_part(self.volume, self.ledger_id, START, end.offset)
            if report.fault is None and report.end.chain == end.chain:
                self._index.distrust(str(misfit))
                return
            self._damage = report.fault or self.volume.damage(misfit.seq, misfit.offset, misfit.fault)
        raise self._damage.with_traceback(None) from misfit.fault

    def _plain_scan(self, query: Query, end: Mark) -> Iterator[StoredEntry]:
        """The matching entries, found without the index."""
        try:
            yield from self._scan(query, START, end)
        except _IndexMismatch as misfit:
            raise self.volume.damage(misfit.seq, misfit.offset, misfit.fault) from misfit.fault

    def _look_up(self, queries: Collection[Query], newest: int | None = None) -> tuple[list[Iterable[Location]], Mark]:
        """Positions of entries that may match each query, and the position from which a scan must find the rest.

        Args:
            queries: the conditions; each has an `index_key`
            newest: only the last so many of each query; None: all
        """
        # Ask the tail first: an entry that moves into the index meanwhile is then found twice, not missed.
        tail = self._index.tail
        late = [tail.find(each.index_key or "", each.after_seq, each.up_to_seq) if tail is not None else [] for each in queries]

        def locations(index: sqlite3.Connection, known: IndexedState) -> tuple[list[Iterable[Location]], Mark]:
            return [_indexed(index, known, each, newest) for each in queries], known.mark

        early, mark = self._index.ask(locations) or ([()] * len(queries), START)
        if tail is None or not tail.start.seq <= mark.seq <= tail.end.seq:
            return early, mark
        after = [[location for location in each if location[0] > mark.seq] for each in late]
        if newest is not None:
            after = [each[-newest:] for each in after]
        return [*map(chain, early, after)], tail.end

    def _scan(self, query: Query, start: Mark, end: Mark) -> Iterator[StoredEntry]:
        """The matching entries between two positions; raises _IndexMismatch if the chain does not lead there."""
        while start.seq < query.up_to_seq:
            for stop in self._next_stops(start.seq, end):
                if start.seq < query.up_to_seq:
                    yield from self._scan_between(query, start, stop)
                    start = stop

    def _next_stops(self, seq: int, end: Mark) -> list[Mark]:
        """Positions after entry `seq` with a known chain hash, ascending and up to `end`; at least one."""
        tail = self._index.tail
        stops = tail.next_stops(seq) if tail is not None else []
        stops = stops or self._index.ask(lambda index, known: next_stops(index, known, seq)) or []
        return [stop for stop in stops if stop.seq < end.seq] or [end]

    def _scan_between(self, query: Query, start: Mark, stop: Mark) -> Iterator[StoredEntry]:
        follower, held, size = Follower(self.ledger_id, start), list[VerifiedRun](), 0
        try:
            for block in read_blocks(self.volume.read, start.offset, stop.offset):
                held += follower.feed(block)
                size += len(block)
                if size >= _HELD_BYTES:  # there is no known position nearby, so stop holding lines back
                    yield from self._wanted(query, held)
                    held, size = [], 0
            at = follower.at
            if (at.seq, at.chain) != (stop.seq, stop.chain):
                raise BadLine("chain_hash", f"sha256:{stop.chain} of entry {stop.seq}", f"sha256:{at.chain} of entry {at.seq}")
        except BadLine as fault:
            raise _IndexMismatch(follower.at.seq + 1, follower.at.offset, fault) from fault
        yield from self._wanted(query, held)

    def _wanted(self, query: Query, runs: Iterable[VerifiedRun]) -> Iterator[StoredEntry]:
        for before, day, bodies, hashes, fault in runs:
            first, last = max(query.after_seq - before.seq, 0), min(query.up_to_seq - before.seq, len(bodies))
            if fault is not None and first < last:
                raise _IndexMismatch(before.seq + 1, before.offset, fault) from fault
            for seq, entry_hash, body in zip(count(before.seq + first + 1), hashes[first:last], bodies[first:last]):
                entry_id = entry_id_of(day, seq)
                try:
                    entry = make_entry(self.ledger_id, seq, entry_id, entry_hash, body, self._index_keys, self._opener)
                    entry = as_read(entry, self._opener)
                except BadLine as fault:
                    raise _IndexMismatch(seq, before.offset, fault) from fault
                if query.matches(entry):
                    yield self._opened(entry)

    def _entries_at(self, query: Query, locations: Iterable[Location]) -> Iterator[StoredEntry]:
        """The entries at these positions. Adjacent entries, usually those of one turn, are read in one call."""
        run, first, end = list[Location](), 0, 0
        for location in locations:
            _, offset, length, _ = location
            if offset != end or offset - first > _RUN_BYTES:
                if run:
                    yield from self._read_run(query, run)
                run, first = [], offset
            run.append(location)
            end = offset + length
        if run:
            yield from self._read_run(query, run)

    def _read_run(self, query: Query, run: Sequence[Location]) -> Iterator[StoredEntry]:
        first, end = run[0][1], run[-1][1] + run[-1][2]
        data = self.volume.read(end - first, first)
        while first + len(data) < end and (piece := self.volume.read(end - first - len(data), first + len(data))):
            data += piece
        for seq, offset, length, digest in run:
            after = offset - first + length
            try:
                if data[after - 1 : after] != b"\n":
                    raise BadLine("framing", "a line that ends with LF", shown(data[offset - first : after]))
                entry = read_line(data[offset - first : after - 1], self.ledger_id, self._index_keys, self._opener)
                if entry.seq != seq or entry.entry_hash[HASH_DIGITS] != digest.hex():
                    raise _other_than(seq, digest, entry)
                entry = as_read(entry, self._opener)
                if query.matches(entry):
                    yield self._opened(entry)
                elif not query.is_found_by_index(entry):
                    raise BadLine(
                        "key", f"an entry of {query.key or query.session_id!r}", "an entry that the index gives for it"
                    )
            except BadLine as fault:
                raise _IndexMismatch(seq, offset, fault) from fault

    def _opened(self, entry: StoredEntry) -> StoredEntry:
        if self._opener is not None:
            _ = entry.payload  # decrypted here, where loading a key may block
        return entry


def _indexed(index: sqlite3.Connection, known: IndexedState, query: Query, newest: int | None) -> Iterable[Location]:
    """Positions that the index has for a query, ascending; `newest`: only the last so many; None: all."""
    key = query.index_key or ""
    if newest is not None:
        return find_newest(index, known, key, query.up_to_seq, newest)
    return find_locations(index, known, key, query.after_seq, query.up_to_seq)


def _other_than(seq: int, digest: bytes, entry: StoredEntry) -> BadLine:
    """The difference between an entry and the number and hash that the index has for it."""
    if entry.seq != seq:
        return BadLine("seq", str(seq), str(entry.seq))
    return BadLine("entry_hash", f"sha256:{digest.hex()}…, as its index recorded", entry.entry_hash)
