"""Searches a ledger as it was at one moment: the flushed part of its files, and the pending entries in memory.

The result of a `LedgerClient` read must not change while a worker thread computes it. Every method but the constructor blocks.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from kitchener.ledger.format.lines import Mark, StoredEntry
from kitchener.ledger.index.query import Query, make_query
from kitchener.ledger.write.storage import Storage


class Moment:
    """A snapshot of one ledger. Its methods run in a worker thread.

    Args:
        storage: files and index of the ledger
        stored: where reading the files ends
        pending: the entries after `stored`, which are in memory
    """

    __slots__ = ("_pending", "_storage", "_stored")

    def __init__(self, storage: Storage, stored: Mark, pending: Sequence[StoredEntry]) -> None:
        self._storage, self._stored, self._pending = storage, stored, pending

    def search(self, query: Query) -> Iterator[StoredEntry]:
        """The entries that match, ascending."""
        return chain(self._storage.search(query, self._stored), filter(query.matches, self._pending))

    def newest(self, query: Query, limit: int) -> list[StoredEntry]:
        """The last `limit` entries that match, ascending."""
        late = deque(filter(query.matches, self._pending), limit)
        missing = limit - len(late)
        return [*(self._storage.newest(query, self._stored, missing) if missing else ()), *late]

    def known_sessions(self, session_ids: Iterable[str]) -> set[str]:
        """The sessions among these that have entries."""
        wanted = set(session_ids)
        late = {entry.session_id for entry in self._pending if entry.session_id in wanted}
        return self._storage.known_sessions(wanted, self._stored) | {each for each in late if each is not None}

    def known_keys(self, keys: Iterable[str]) -> set[str]:
        """The keys among these that have entries."""
        wanted = set(keys)
        late = {key for entry in self._pending for key in entry.keys if key in wanted}
        return self._storage.known_keys(wanted, self._stored) | late

    def last_of(self, keys: Iterable[str]) -> dict[str, StoredEntry]:
        """The newest entry of each key, by key; keys without entries are left out."""
        wanted = set(keys)
        found = {key: entry for entry in self._pending for key in entry.keys if key in wanted}
        for key in wanted.difference(found):
            earlier = self._storage.newest(make_query(key=key), self._stored, 1)
            if earlier:
                found[key] = earlier[-1]
        return found
