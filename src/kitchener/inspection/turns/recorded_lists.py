"""Turns the recorded projections of one session into their lists, by applying the edits of each to the projection before it.

Of a projection below, only the eligible items matter. They are computed once, so the lists of neighbouring turns cost little
more than those of one.
"""

from collections.abc import Iterable

from kitchener.context import ProjectionLists, base_ref, read_lists
from kitchener.context.projection.ref_lists import apply_edits, read_refs
from kitchener.errors import NotOnRecord
from kitchener.ledger import StoredEntry
from kitchener.records import events
from kitchener.records.entries import ProjectionPayload
from kitchener.records.ref import Ref


class RecordedLists:
    """The lists of a session's projections.

    Args:
        decided: the entries of the session in the context ledger
    """

    def __init__(self, decided: Iterable[StoredEntry]) -> None:
        self._decided = {entry.ref: entry for entry in decided}
        self._eligible: dict[Ref, tuple[Ref, ...]] = {}

    def of(self, shown: StoredEntry) -> ProjectionLists:
        """The lists of one projection.

        Raises:
            NotOnRecord: the projection that it changes is missing
        """
        base = base_ref(shown.payload)
        return read_lists(shown.payload, ProjectionLists(self._eligible_of(base, shown)) if base is not None else None)

    def _eligible_of(self, ref: Ref, shown: StoredEntry) -> tuple[Ref, ...]:
        chain, below = [], ref
        while below not in self._eligible:
            if below not in self._decided:
                raise NotOnRecord(f"{shown.entry_id} is recorded as a change of {below.entry_id}, which is not there")
            chain.append(below)
            base = base_ref(self._decided[below].payload)
            if base is None:
                break
            below = base
        eligible = self._eligible.get(below, ())
        for each in reversed(chain):
            listed = events.read_as(ProjectionPayload, self._decided[each])["eligible_refs"]
            eligible = read_refs(listed) if isinstance(listed, list) else apply_edits(listed["edits"], eligible)
            self._eligible[each] = eligible
        return eligible
