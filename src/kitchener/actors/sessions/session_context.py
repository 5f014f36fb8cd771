"""Turns an active session and the standing rules into context fragments: the default `ContextProvider`.

`retriever.py` calls it; it reads the active sessions (`directory.py`). Explained in `docs/attention.md`.
"""

from collections.abc import Sequence
from itertools import islice
from operator import itemgetter

from kitchener.actors.attention.attention_context import ContextFragment, standing_rule_fragments
from kitchener.actors.attention.retriever import match_words
from kitchener.actors.sessions.directory import SessionDirectory
from kitchener.actors.sessions.session_state import PastTurn, SessionState, number_of
from kitchener.config import HO2Config
from kitchener.context.projection.window import kept_recent


class SessionContext:
    """Provides the newest turns that the session keeps in memory, and the standing rules.

    It never reads a file, because an active session holds these turns in memory.

    Args:
        sessions: the active sessions
        config: the settings of the agent class
        is_chat: whether old turns are dropped in steps, so that a prompt only grows between two steps
    """

    never_waits = True

    def __init__(self, sessions: SessionDirectory, config: HO2Config, *, is_chat: bool = False) -> None:
        self._sessions = sessions
        self._recent_turns = config.gathered_turns
        self._step = self._recent_turns - kept_recent(self._recent_turns, config.evict_to) if is_chat else 0
        self.fixed_rules = standing_rule_fragments(config.standing_rules, config.token_estimator)
        """The standing rules, which the settings fix."""

    async def read_ledger_entries(self, session_id: str, *, limit: int) -> Sequence[ContextFragment]:
        """The session's newest turns, oldest first: `limit` of them, or fewer after a step."""
        state = self._sessions.state(session_id)
        return [past.fragment for past in self._newest(state, limit)] if state is not None else ()

    def _newest(self, state: SessionState, limit: int) -> list[PastTurn]:
        newest = state.newest(limit)
        if self._step > 1 and len(newest) == limit:
            gone = -((limit - number_of(newest[-1].turn_id)) // self._step) * self._step
            newest = [past for past in newest if number_of(past.turn_id) > gone]
        return newest

    async def search_text(self, session_id: str, query: str, *, limit: int) -> Sequence[ContextFragment]:
        """The session's older turns that share words with the query: most shared words first, then newest first."""
        state = self._sessions.state(session_id)
        if state is None or (earlier := len(state.window) - len(self._newest(state, self._recent_turns))) <= 0:
            return ()  # all turns are among the newest, which are shown anyway
        wanted = match_words(query)
        older = islice(state.window, earlier)
        scored = [(len(common), past.turn_id, past.fragment) for past in older if (common := wanted & past.words)]
        scored.sort(key=itemgetter(0, 1), reverse=True)
        return [fragment for _, _, fragment in scored[:limit]]

    async def read_registry(self) -> Sequence[ContextFragment]:
        """The standing rules."""
        return self.fixed_rules
