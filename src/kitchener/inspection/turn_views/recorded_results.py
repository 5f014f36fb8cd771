"""Reads the results of tools that a session's later turns may be shown, as the supervisor keeps them."""

from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack

from kitchener.actors.sessions.recalled_results import newest_of_equal, read_result
from kitchener.context import ContextState, Item, ToolResult, estimator, result_item
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.turn_views.recorded_session import RecordedSession
from kitchener.ledger import StoredEntry
from kitchener.records import events
from kitchener.records.entries import TurnCompletedPayload, payload_as
from kitchener.records.ref import Ref


async def kept_results(paths: LedgerPaths, past: RecordedSession, entries: Iterable[StoredEntry]) -> list[ToolResult]:
    """The newest results that these entries of the session keep for later turns, oldest first; each of equal ones once."""
    completed = [each for each in entries if each.entry_type == events.TURN_COMPLETED]
    listed = [each for entry in completed for each in payload_as(TurnCompletedPayload, entry.payload).get("tool_results") or ()]
    most = past.config.recalled_results
    refs = [Ref.from_listed(each) for each in listed[-most:]] if most else []
    return newest_of_equal(await read_results(paths, past, refs))


async def read_results(paths: LedgerPaths, past: RecordedSession, refs: Sequence[Ref]) -> list[ToolResult]:
    """The results in these entries, in their order, without those that were erased or are gone."""
    async with AsyncExitStack() as opened:
        ho1m = await opened.enter_async_context(paths.reader(past.agent_class, "ho1m")) if refs else None
        entries = [await ho1m.find(ref) for ref in refs] if ho1m is not None else []
    found = [read_result(each) for each in entries if each is not None and each.entry_type == events.TOOL_CALL]
    return [each for each in found if each is not None]


def result_items(past: RecordedSession, results: Iterable[ToolResult], state: ContextState, message: str) -> list[Item]:
    """Results as items for a turn with this message."""
    estimate = estimator(past.config.token_estimator)
    turns = ((each, state.turns.get(each.turn_id)) for each in results)
    return [
        result_item(each, message, past.config.result_tokens, estimate, intent_id=turn.intent_id)
        for each, turn in turns
        if turn is not None
    ]
