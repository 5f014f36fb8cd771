"""Tells in which turns of a session a provider's cache could not serve the beginning of the prompt, and why."""

from collections.abc import Sequence

from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.runtime.root_layout import open_readers
from kitchener.tuning import BreakCause, read_prefixes, session_breaks
from kitchener.tuning.prompt_prefixes import causes_text


async def read_breaks(paths: LedgerPaths, agent_class: str, session_id: str) -> dict[str, tuple[BreakCause, ...]]:
    """The causes of the breaks by turn; (): the prompt continued as before. Turns with nothing to compare are left out."""
    async with open_readers(paths.config, agent_class, sealer=paths.sealer()) as readers:
        return session_breaks(await read_prefixes(readers, session_id))


def break_text(causes: Sequence[BreakCause]) -> str:
    """A break, for a reader."""
    return f"no cache could serve what the prompt before began with: {causes_text(causes)}"
