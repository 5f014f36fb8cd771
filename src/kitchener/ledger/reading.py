"""Finds entries: through the index where it helps, by scanning where it does not, and hands them out some at a time."""

import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple, Protocol, TypeVar

from kitchener.errors import CallerError
from kitchener.ledger.chain import START, BadLine, IndexKeys, Mark, Opener, StoredEntry, read_line, shown
from kitchener.ledger.index import Known, find_newest, find_places, find_stop
from kitchener.ledger.places import Place, Tail, other_key, session_key
from kitchener.ledger.scanning import read_lines
from kitchener.ledger.volume import Volume

T = TypeVar("T")
NO_END: Final = 2**62
"""Larger than any entry's number."""
_TAKE_ENTRIES: Final = 256
_TAKE_BYTES: Final = 1 << 20
_RUN_BYTES: Final = 1 << 16
"""Neighbours are read together up to about so many bytes."""


class Query(NamedTuple):
    """Which entries are wanted. Conditions that are None always hold."""

    session_id: str | None = None
    entity_id: str | None = None
    entry_types: frozenset[str] | None = None
    key: str | None = None
    after_seq: int = 0
    up_to_seq: int = NO_END

    @property
    def index_key(self) -> str | None:
        """The key under which the index has all the entries wanted, and perhaps more; None: only a scan finds them."""
        if self.key is not None:
            return other_key(self.key)
        return session_key(self.session_id) if self.session_id is not None else None

    def matches(self, entry: StoredEntry) -> bool:
        """Whether an entry is wanted."""
        return (
            self.after_seq < entry.seq <= self.up_to_seq
            and (self.session_id is None or entry.session_id == self.session_id)
            and (self.key is None or self.key in entry.keys)
            and (self.entry_types is None or entry.entry_type in self.entry_types)
            and (self.entity_id is None or entry.entity_id == self.entity_id)
        )


def make_query(
    *,
    session_id: str | None = None,
    entity_id: str | None = None,
    entry_type: str | tuple[str, ...] | None = None,
    key: str | None = None,
    after_seq: int | None = None,
    up_to_seq: int | None = None,
) -> Query:
    """The query of a caller's arguments."""
    types = (entry_type,) if isinstance(entry_type, str) else entry_type
    return Query(
        session_id,
        entity_id,
        None if types is None else frozenset(types),
        key,
        after_seq or 0,
        NO_END if up_to_seq is None else up_to_seq,
    )


def check_key(key: str | None, index_keys: IndexKeys | None) -> None:
    """Refuses to look for a key where nobody said which entries have it."""
    if key is not None and index_keys is None:
        raise CallerError(f"entries cannot be found by key {key!r}: the ledger was opened without index_keys")


class Catalog(Protocol):
    """Where an index can be asked; one call at a time."""

    @property
    def tail(self) -> Tail | None:
        """What comes after the index, if it is at hand."""
        ...

    def ask(self, question: Callable[[sqlite3.Connection, Known], T]) -> T | None:
        """The answer to a question, or None where there is no index to be trusted."""
        ...


class Shelf:
    """A ledger's files and its index, for reading. Blocks.

    Args:
        volume: the files
        ledger_id: whose they are
        catalog: its index
        index_keys: gives an entry's other keys
        opener: opens sealed values
    """

    def __init__(
        self,
        volume: Volume,
        ledger_id: str,
        catalog: Catalog,
        index_keys: IndexKeys | None,
        opener: Opener | None,
    ) -> None:
        self.volume = volume
        """The files."""
        self._ledger_id, self._catalog = ledger_id, catalog
        self._index_keys, self._opener = index_keys, opener

    def search(self, query: Query, end: Mark) -> Iterator[StoredEntry]:
        """The entries wanted before a place, ascending.

        Raises:
            LedgerDamaged: a line is not what was written
        """
        query = query._replace(up_to_seq=min(query.up_to_seq, end.seq))
        places, start = self._look_up(query)
        for entry in self._entries_at(places):
            if query.matches(entry):
                yield entry
        yield from self._scan(query, start, end)

    def newest(self, query: Query, end: Mark, limit: int) -> list[StoredEntry]:
        """The last `limit` entries wanted before a place, ascending."""
        if query.session_id is not None and query.key is not None:
            return list(deque(self.search(query, end), limit))
        query = query._replace(up_to_seq=min(query.up_to_seq, end.seq))
        if query.index_key is None:
            query = query._replace(after_seq=max(query.after_seq, query.up_to_seq - limit))
            return list(self.search(query, end))
        places, start = self._look_up(query, limit)
        found = deque(self._entries_at(places), limit)
        found.extend(self._scan(query, start, end))
        return list(found)

    def find_stop(self, seq: int) -> Mark:
        """A place at or before the end of entry `seq`, from which a scan for what comes after it can start."""
        tail = self._catalog.tail
        stop = tail.find_stop(seq) if tail is not None else None
        return stop or self._catalog.ask(lambda index, _: find_stop(index, seq)) or START

    def _look_up(self, query: Query, newest: int | None = None) -> tuple[Iterable[Place], Mark]:
        """Where entries stand that may be wanted, and the place from which the rest must be scanned for.

        Args:
            query: which entries
            newest: only the last so many
        """
        key, after, up_to = query.index_key, query.after_seq, query.up_to_seq
        if key is None:
            return (), self.find_stop(after)
        # The tail first: what moves from it into the index meanwhile is then found twice, not missed.
        tail = self._catalog.tail
        late = tail.find(key, after, up_to) if tail is not None else []

        def places(index: sqlite3.Connection, known: Known) -> tuple[Iterable[Place], Mark]:
            to = min(up_to, known.mark.seq)
            if newest is not None:
                return find_newest(index, key, to, newest), known.mark
            return find_places(index, key, after, to), known.mark

        early, mark = self._catalog.ask(places) or ((), START)
        if tail is None or not tail.start.seq <= mark.seq <= tail.end.seq:
            return early, mark
        late = [place for place in late if place[0] > mark.seq]
        return chain(early, late[-newest:] if newest is not None else late), tail.end

    def _scan(self, query: Query, start: Mark, end: Mark) -> Iterator[StoredEntry]:
        seq, offset = start.seq, start.offset
        if query.up_to_seq <= seq:
            return
        after = max(query.after_seq, seq)
        try:
            for lines in read_lines(self.volume.read, offset, end.offset):
                for line in lines:
                    seq += 1
                    if seq > after:
                        entry = self._entry(line)
                        if query.matches(entry):
                            yield entry
                        if seq >= query.up_to_seq:
                            return
                    offset += len(line) + 1
        except BadLine as fault:
            raise self.volume.damage(seq, offset, fault) from fault

    def _entries_at(self, places: Iterable[Place]) -> Iterator[StoredEntry]:
        """The entries at these places; those of one turn mostly stand side by side, and are then read in one go."""
        run, first, end = list[Place](), 0, 0
        for place in places:
            _, offset, length = place
            if offset != end or offset - first > _RUN_BYTES:
                if run:
                    yield from self._read_run(run)
                run, first = [], offset
            run.append(place)
            end = offset + length
        if run:
            yield from self._read_run(run)

    def _read_run(self, run: Sequence[Place]) -> Iterator[StoredEntry]:
        first, end = run[0][1], run[-1][1] + run[-1][2]
        data = self.volume.read(end - first, first)
        while first + len(data) < end and (piece := self.volume.read(end - first - len(data), first + len(data))):
            data += piece
        for seq, offset, length in run:
            try:
                after = offset - first + length
                if data[after - 1 : after] != b"\n":
                    raise BadLine("framing", "a line that ends with LF", shown(data[offset - first : after]))
                entry = self._entry(data[offset - first : after - 1])
                if entry.seq != seq:
                    raise BadLine("seq", str(seq), str(entry.seq))
            except BadLine as fault:
                raise self.volume.damage(seq, offset, fault) from fault
            yield entry

    def _entry(self, line: bytes) -> StoredEntry:
        entry = read_line(line, self._ledger_id, self._index_keys, self._opener)
        if self._opener is not None:
            _ = entry.payload  # opened here, where fetching a key may block
        return entry


class Entries(AsyncIterator[StoredEntry]):
    """Entries as a loop asks for them. It may be left at any time.

    Not an async generator: one that is left early has to be closed, and few callers would.
    """

    def __init__(
        self, entries: Iterator[StoredEntry], run: Callable[[Callable[[], list[StoredEntry]]], Awaitable[list[StoredEntry]]]
    ) -> None:
        self._entries, self._run = entries, run
        self._ready: deque[StoredEntry] = deque()
        self._done = False

    async def __anext__(self) -> StoredEntry:
        if not self._ready:
            if not self._done:
                self._ready.extend(await self._run(self._take))
            if not self._ready:
                self._done = True
                raise StopAsyncIteration
        return self._ready.popleft()

    def _take(self) -> list[StoredEntry]:
        taken, size = [], 0
        for entry in self._entries:
            taken.append(entry)
            size += len(entry.body)
            if len(taken) >= _TAKE_ENTRIES or size >= _TAKE_BYTES:
                break
        else:
            self._done = True
        return taken
