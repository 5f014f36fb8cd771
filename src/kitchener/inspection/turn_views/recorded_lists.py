"""Turns the recorded projections of one session into their lists, by applying the edits of each to an earlier one.

Of a projection below, only the eligible and the visible items matter. They are computed once, so the lists of neighbouring
turns cost little more than those of one.
"""

from collections.abc import Iterable

from kitchener.context import ProjectionLists, base_ref, read_base, read_lists
from kitchener.errors import NotOnRecord
from kitchener.ledger import StoredEntry
from kitchener.records.ref import Ref


class RecordedLists:
    """The lists of a session's projections.

    Args:
        decided: the entries of the session in the context ledger
    """

    def __init__(self, decided: Iterable[StoredEntry]) -> None:
        self._decided = {entry.ref: entry for entry in decided}
        self._known: dict[Ref, ProjectionLists] = {}

    def of(self, shown: StoredEntry) -> ProjectionLists:
        """The lists of one projection.

        Raises:
            NotOnRecord: the projection that it changes is missing
        """
        base = base_ref(shown.payload)
        return read_lists(shown.payload, self._base(base, shown) if base is not None else None)

    def _base(self, ref: Ref, shown: StoredEntry) -> ProjectionLists | None:
        chain, below = [], ref
        while below not in self._known:
            if below not in self._decided:
                raise NotOnRecord(f"{shown.entry_id} is recorded as a change of {below.entry_id}, which is not there")
            chain.append(below)
            base = base_ref(self._decided[below].payload)
            if base is None:
                break
            below = base
        lists = self._known.get(below)
        for each in reversed(chain):
            lists = self._known[each] = read_base(self._decided[each].payload, lists)
        return lists
