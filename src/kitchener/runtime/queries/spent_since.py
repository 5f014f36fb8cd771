"""Reads a subject's use since a given time from the ledgers, for limits that apply across restarts.

Calls of turns count, also of those that were cut off. Explained in `docs/gateway.md`.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from kitchener.config import ModelPrice
from kitchener.gateway.spending_limits import NOTHING, Spent, spent_by_call
from kitchener.ledger import Ledgers
from kitchener.records import events
from kitchener.records.attempt_record import billed_answer
from kitchener.records.index_keys import aborted_index_key, subject_index_key

_FIRST_LOOK: Final = 64
"""Newest turns of a subject that are read first. The number doubles while all of them are in the time range."""


async def spent_since(ledgers: Ledgers, subject_id: str, since: datetime, prices: Mapping[str, ModelPrice]) -> Spent:
    """The tokens, calls and cost of a subject's model calls since a time, in one agent class.

    Args:
        ledgers: the ledgers of the agent class
        subject_id: the subject
        since: only calls from this time on count
        prices: the prices of models; a call without a price costs nothing
    """
    start = since.isoformat(timespec="seconds").replace("+00:00", "")  # shorter than times in ledgers: sorts first
    total = NOTHING
    keys = subject_index_key(subject_id), aborted_index_key(subject_id)
    for session_id in set[str]().union(*[await _sessions_since(ledgers, key, start) for key in keys]):
        async for entry in ledgers.ho1m.read(session_id=session_id, entry_type=events.WITH_USAGE):
            answer = billed_answer(entry.entry_type, entry.payload) if entry.timestamp >= start else None
            if answer is not None:
                total = total.plus(spent_by_call(prices, answer.provider_id, answer.model_id, answer.usage))
    return total


async def _sessions_since(ledgers: Ledgers, key: str, start: str) -> set[str]:
    """The sessions of the entries with an index key since a time."""
    limit = _FIRST_LOOK
    while True:
        newest = await ledgers.ho2m.last(key=key, limit=limit)
        if len(newest) < limit or newest[0].timestamp < start:
            return {each.session_id for each in newest if each.timestamp >= start and each.session_id is not None}
        limit *= 2
