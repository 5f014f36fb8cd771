"""Finds in which turns a provider's cache could not serve the beginning of the prompt, and why, by comparing each with the turn
before."""

from collections.abc import Sequence

from kitchener.context import ProjectionLists
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.turn_views.answered_calls import read_work
from kitchener.inspection.turn_views.recorded_lists import RecordedLists
from kitchener.inspection.turn_views.recorded_session import RecordedSession
from kitchener.ledger import StoredEntry
from kitchener.records import events
from kitchener.records.entries import ProjectionPayload
from kitchener.runtime.root_layout import open_readers
from kitchener.tuning import BreakCause, read_prefixes, session_breaks
from kitchener.tuning.prompt_prefixes import causes_text
from kitchener.tuning.recorded_prefixes import read_last_prefixes


async def read_breaks(paths: LedgerPaths, agent_class: str, session_id: str) -> dict[str, tuple[BreakCause, ...]]:
    """The causes of the breaks by turn; (): the prompt continued as before. Turns with nothing to compare are left out."""
    async with open_readers(paths.config, agent_class, sealer=paths.sealer()) as readers:
        return session_breaks(await read_prefixes(readers, session_id))


def break_text(causes: Sequence[BreakCause]) -> str:
    """Returns one line that says why a prompt cache could not be used."""
    return f"no cache could serve what the prompt before began with: {causes_text(causes)}"


async def read_turn_breaks(
    paths: LedgerPaths, past: RecordedSession, turn_id: str, decided: Sequence[StoredEntry], recorded: RecordedLists
) -> tuple[BreakCause, ...] | None:
    """Why the prompt of a turn begins differently from the previous turn's; (): it does not; None: there is none to compare.

    Reads the calls of these two turns only.

    Args:
        paths: where the ledgers are
        past: the session
        turn_id: the turn
        decided: the entries of the session in the context ledger
        recorded: their lists
    """
    mine = [each for each in past.entries if each.session_id == past.session_id]

    async def calls_of(each: str) -> list[StoredEntry]:
        return await read_work(ho1m, past.entries, each) if ho1m is not None else []

    def projection_of(each: str) -> tuple[ProjectionPayload, ProjectionLists] | None:
        for entry in reversed(decided):
            if entry.entry_type == events.PROJECTION_COMPUTED and events.read_common(entry).get("turn_id") == each:
                payload = events.read_as(ProjectionPayload, entry)
                if payload["mode"] == "enforce":
                    return payload, recorded.of(entry)
        return None

    async with paths.reader(past.agent_class) as ho2m, paths.reader(past.agent_class, "ho1m") as ho1m:
        if ho2m is None or ho1m is None:
            return None
        turns = await read_last_prefixes(ho2m, mine, turn_id, calls_of, projection_of)
    return session_breaks(turns).get(turn_id)
