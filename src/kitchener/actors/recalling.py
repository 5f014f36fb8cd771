"""Completed turns beyond the active intent, as evidence that a projection may recall: the session's, or the subject's.

A subject's turns are read from HO2m once, through its index, and kept up to date as turns complete; how many are kept in memory
is bounded. What a turn may recall ends where the ledger stood when it began.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from kitchener.context import Item, evidence_item
from kitchener.context.items import Estimator
from kitchener.ledger import Ledgers, StoredEntry
from kitchener.records import events

_MAX_TURNS: Final = 100_000
"""Turns of all subjects that are kept in memory; beyond it the longest unused subjects are put away."""


class _Turns:
    __slots__ = ("items", "read_to")

    def __init__(self) -> None:
        self.items: dict[str, Item] = {}
        self.read_to = 0


class SubjectTurns:
    """The turns of the subjects in use, one dict each, oldest first.

    Args:
        ledgers: where the turns are
        estimate: how their tokens are counted
    """

    def __init__(self, ledgers: Ledgers, estimate: Estimator) -> None:
        self._ledgers, self._estimate = ledgers, estimate
        self._subjects: OrderedDict[str, _Turns] = OrderedDict()
        self._held = 0

    async def of(self, subject_id: str, position: int) -> Mapping[str, Item]:
        """The completed turns of a subject, by id, oldest first.

        Args:
            subject_id: whose
            position: where HO2m stood when the turn began that asks; later turns are left out
        """
        kept = self._subjects.get(subject_id)
        if kept is None:
            kept = self._subjects[subject_id] = _Turns()
        self._subjects.move_to_end(subject_id)
        await self._read_on(subject_id, kept, position)
        if kept.read_to <= position:
            return kept.items
        return {turn: item for turn, item in kept.items.items() if int(item.ref.entry_id.rpartition("-")[2]) <= position}

    def forget(self, subject_id: str) -> None:
        """Puts a subject's turns away; asked for again, they are read again."""
        dropped = self._subjects.pop(subject_id, None)
        self._held -= len(dropped.items) if dropped is not None else 0

    async def _read_on(self, subject_id: str, kept: _Turns, position: int) -> None:
        """Takes the turns that were completed since."""
        ho2m = self._ledgers.ho2m
        completed = ho2m.read(key=events.subject_index_key(subject_id), after_seq=kept.read_to, up_to_seq=position)
        found = [entry async for entry in completed]
        started = await ho2m.last_of(events.turn_index_key(entry.entity_id) for entry in found) if found else {}
        for entry in found:
            item = self._item(entry, started.get(events.turn_index_key(entry.entity_id)))
            if item is not None and item.entity_id not in kept.items:
                kept.items[item.entity_id] = item
                self._held += self._subjects.get(subject_id) is kept  # else it was put away while it was being read
        kept.read_to = max(kept.read_to, position)
        while self._held > _MAX_TURNS and len(self._subjects) > 1:
            _, dropped = self._subjects.popitem(last=False)
            self._held -= len(dropped.items)

    def _item(self, entry: StoredEntry, started: StoredEntry | None) -> Item | None:
        payload = entry.payload
        message = started.payload.get("user_message") if started is not None else None
        response = payload.get("response")
        if not isinstance(message, str) or not isinstance(response, str):
            return None  # erased
        return evidence_item(
            entry.entity_id,
            entry.ref,
            entry.timestamp,
            f"user: {message}\nassistant: {response}",
            self._estimate,
            session_id=str(payload["session_id"]),
        )
