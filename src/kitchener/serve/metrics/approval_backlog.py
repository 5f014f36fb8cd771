"""Counts the requests for approval that wait for a person, at each reading: what turns record, it reads from the ledgers.

A reading after the first costs what was requested and answered since, and a look at each session in which something waits.
"""

from collections.abc import Iterable

import anyio

from kitchener.clock import Clock
from kitchener.ledger import ReadableLedger, StoredEntry
from kitchener.records import events
from kitchener.records.index_keys import APPROVALS_KEY
from kitchener.runtime import Runtime
from kitchener.runtime.queries.approval_list import approvals_in
from kitchener.times import iso_of


class ApprovalBacklog:
    """The requests that wait, as of the last reading.

    Args:
        runtime: whose requests
        clock: the time of day
    """

    def __init__(self, runtime: Runtime, clock: Clock) -> None:
        self._runtime, self._clock = runtime, clock
        self._waiting: dict[str, list[StoredEntry]] = {}
        self._seen: dict[str, int] = {}
        self._reading = anyio.Lock()

    async def count(self, agent_classes: Iterable[str]) -> dict[str, int]:
        """How many requests wait, by agent class. The ledgers of the classes are open."""
        async with self._reading:
            return {name: await self._count(name, self._runtime.ledgers(name).ho2m) for name in agent_classes}

    async def _count(self, agent_class: str, ledger: ReadableLedger) -> int:
        after = self._seen.get(agent_class, 0)
        entries = [*self._waiting.get(agent_class, ())]
        entries += [each async for each in ledger.read(key=APPROVALS_KEY, after_seq=after)]
        ends, first = list[StoredEntry](), {each.session_id: each.seq for each in reversed(entries)}
        for session, seq in first.items():
            found = ledger.read(session_id=session, entry_type=(events.SESSION_END, events.WO_ABANDONED), after_seq=seq)
            ends += [each async for each in found]
        pending = [each for each in approvals_in([*entries, *ends], iso_of(self._clock.time_us())) if each.is_pending]
        ids = {each.approval_id for each in pending}
        self._seen[agent_class] = max([after, *(each.seq for each in entries)])
        self._waiting[agent_class] = [each for each in entries if each.entity_id in ids]
        return sum(not each.is_of_client for each in pending)
