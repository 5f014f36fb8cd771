"""How much work of a request counts as one more request of its key, so that a small request cannot ask for a lot of it.

Each constant stands for about as much time of the processor, 10 to 40 ms. Explained in `docs/server.md`.
"""

from typing import Final

from kitchener.actors.sessions.directory import SessionManager

BODY_BYTES: Final = 524_288
"""Bytes of a body. JSON of 16 MiB may take 0.4 s."""
LISTED_SESSIONS: Final = 50
"""Sessions of a list. The titles of so many are as much work as a few turns."""
READ_TURNS: Final = 100
"""Turns of a session that are read back from the ledger."""
READ_EVENTS: Final = 250
"""Events of a session that are read back from the ledger."""
EXPLAINED_TURNS: Final = 10
"""Turns of a session whose context is computed again, to tell why a turn was shown what it was."""
IMPORTED_MESSAGES: Final = 25
"""Messages of another conversation with which a session begins: each is recorded, sealed and indexed."""
CONTEXT_S: Final = 0.02
"""Seconds of the processor that choosing the context of a turn takes, where long messages match. Most turns take less, and
count nothing. Known only when it is done."""


def length_of(session: SessionManager) -> int:
    """How many turns a session has, with the imported messages that have a reply."""
    return session.state.completed_turns + session.state.imported
