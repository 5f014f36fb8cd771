"""The amounts of work that count as one more request of a key, so that a small request cannot ask for a lot of work.

Each constant stands for about as much time of the processor, 10 to 40 ms. Explained in `docs/server.md`.
"""

from typing import Final

from kitchener.actors.sessions.active_session import SessionManager

BODY_BYTES: Final = 524_288
"""Bytes of a body. JSON of 16 MiB may take 0.4 s."""
LISTED_SESSIONS: Final = 50
"""Sessions of a list. The titles of so many are as much work as a few turns."""
READ_TURNS: Final = 100
"""Turns of a session that are read back from the ledger."""
READ_EVENTS: Final = 250
"""Events of a session that are read back from the ledger."""
EXPLAINED_TURNS: Final = 10
"""Turns of a session whose context is computed again, to explain what a turn was shown."""
IMPORTED_MESSAGES: Final = 25
"""Messages of another conversation that a session begins with: each is recorded, sealed and indexed."""
CONTEXT_S: Final = 0.02
"""Seconds of the processor that choosing the context of a turn takes, where long messages match. Most turns take less and do
not count. The time is known only afterwards."""


def length_of(session: SessionManager) -> int:
    """How many turns a session has, with the imported messages that have a reply."""
    return session.state.completed_turns + session.state.imported
