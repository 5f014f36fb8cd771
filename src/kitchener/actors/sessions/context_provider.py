"""What attention gathers where nobody says otherwise: the session's own turns, and the standing rules.

Above stands `retriever.py`, which asks; below it the active sessions (`directory.py`). Explained in `docs/attention.md`.
"""

from collections.abc import Sequence
from itertools import islice
from operator import itemgetter

from kitchener.actors.attention.retriever import ContextFragment, standing_rule_fragments, words_of
from kitchener.actors.sessions.directory import SessionDirectory
from kitchener.config import HO2Config


class SessionContext:
    """The default `ContextProvider`: the newest turns that the session keeps in memory, and the standing rules.

    It never reads a file: an active session's window is the fold of its ledger.
    """

    never_waits = True

    def __init__(self, sessions: SessionDirectory, config: HO2Config) -> None:
        self._sessions = sessions
        self._recent_turns = config.recent_turns
        self._rules = standing_rule_fragments(config.standing_rules, config.token_estimator)

    async def read_ledger_entries(self, session_id: str, *, limit: int) -> Sequence[ContextFragment]:
        """The session's newest turns, oldest first."""
        state = self._sessions.state(session_id)
        return [past.fragment for past in state.newest(limit)] if state is not None else ()

    async def search_text(self, session_id: str, query: str, *, limit: int) -> Sequence[ContextFragment]:
        """The session's earlier turns that share words with the query: most of them first, newer before older."""
        state = self._sessions.state(session_id)
        if state is None or (earlier := len(state.window) - self._recent_turns) <= 0:
            return ()  # all of them are shown anyway
        wanted = words_of(query)
        older = islice(state.window, earlier)
        scored = [(len(common), past.turn_id, past.fragment) for past in older if (common := wanted & past.words)]
        scored.sort(key=itemgetter(0, 1), reverse=True)
        return [fragment for _, _, fragment in scored[:limit]]

    async def read_registry(self) -> Sequence[ContextFragment]:
        """The standing rules."""
        return self._rules
