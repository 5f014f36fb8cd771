"""What a subject said before, however much, is read and indexed in pieces, between which other subjects' turns go on.

A message of a few bytes can make all of it be read: the first one after a restart, or in another session.
"""

from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from kitchener.actors.authority.session_thread import SessionThread
from kitchener.context.lexical.postings import LexicalTurns
from kitchener.runtime.portable.conversation_file import SpokenConversation, SpokenMessage
from tests.acceptance.stack import open_scripted

_MESSAGES = 800
_AT_ONCE = 256
"""Messages that may be worked on in one round of the event loop, in which a task may run twice."""


class Rounds:
    """Counts the rounds of the event loop, and what is done between two of them."""

    def __init__(self) -> None:
        self.round, self.done, self.most, self.all = 0, 0, 0, 0

    async def run(self) -> None:
        while True:
            await anyio.lowlevel.checkpoint()
            self.done = 0

    def counting(self, does: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object, **options: object) -> object:
            self.done += 1
            self.all += 1
            self.most = max(self.most, self.done)
            return does(*args, **options)

        return counted


@pytest.mark.parametrize("session", ["the same", "another"])
async def test_a_long_past_is_indexed_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session: str) -> None:
    """Regression: all messages of the subject were indexed in one step, which stopped everybody for seconds."""
    messages = tuple(SpokenMessage("assistant" if each % 2 else "user", f"word {each}", None, "") for each in range(_MESSAGES))
    indexed, applied = Rounds(), Rounds()
    monkeypatch.setattr(LexicalTurns, "append", indexed.counting(LexicalTurns.append))
    monkeypatch.setattr(SessionThread, "apply", applied.counting(SessionThread.apply))
    async with open_scripted(tmp_path, context_mode="enforce", recall_scope="subject") as runtime:
        supervisor = runtime.supervisor()
        past = await runtime.begin_from(SpokenConversation("past", None, messages), subject_id="ada")
        session_id = past if session == "the same" else await supervisor.start_session(subject_id="ada")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(indexed.run)
            tasks.start_soon(applied.run)
            await anyio.lowlevel.checkpoint()
            assert (await supervisor.handle_turn("word 7", session_id=session_id)).error is None
            tasks.cancel_scope.cancel()
        assert indexed.all >= _MESSAGES
        assert indexed.most <= _AT_ONCE
        assert applied.most <= _AT_ONCE
