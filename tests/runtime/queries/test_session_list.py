"""Sessions can be listed, and read from their beginning, from code. See docs/sessions.md."""

from pathlib import Path

import pytest

from kitchener import CallerError, Exchange
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import echo, open_scripted


async def test_sessions_are_listed_newest_first_and_by_subject(tmp_path: Path) -> None:
    async with open_scripted(tmp_path, ScriptedProvider(echo)) as runtime:
        supervisor = runtime.supervisor()
        ids = [await supervisor.start_session(subject_id=name) for name in ("ada", "bo", "ada")]
        named = await supervisor.start_session(subject_id="bo", external_id="chat-7")
        await supervisor.end_session(ids[0])
        assert [each.session_id for each in await runtime.sessions()] == [named, *reversed(ids)]
        assert [each.session_id for each in await runtime.sessions(limit=2)] == [named, ids[2]]
        of_ada = await runtime.sessions(subject_id="ada")
        assert [(each.session_id, each.is_ended) for each in of_ada] == [(ids[2], False), (ids[0], True)]
        of_bo = await runtime.sessions(subject_id="bo")
        assert [(each.session_id, each.external_id) for each in of_bo] == [(named, "chat-7"), (ids[1], None)]
        assert await runtime.sessions(subject_id="cy") == []
        assert all(each.started_at <= each.last_at for each in of_ada)
        with pytest.raises(CallerError, match="limit = 0"):
            await runtime.sessions(limit=0)


async def test_the_history_goes_back_to_the_beginning(tmp_path: Path) -> None:
    """Memory keeps two turns; the ledger has all. Another subject's session stays out of it."""
    async with open_scripted(tmp_path, ScriptedProvider(echo), attention_window_turns=2) as runtime:
        supervisor = runtime.supervisor()
        session_id = await supervisor.start_session(subject_id="ada")
        for number in range(5):
            await supervisor.handle_turn(f"message {number}", session_id=session_id)
            await supervisor.handle_turn("of bo", subject_id="bo")
        session = await supervisor.session(session_id)
        assert [said for said, _ in session.history] == ["message 3", "message 4"]
        turns = [each async for each in session.read_history()]
    assert [(each.user_message, each.response) for each in turns] == [
        (f"message {number}", f"echo: message {number}") for number in range(5)
    ]
    assert [each.turn_id[-6:] for each in turns] == [f"{number:06d}" for number in range(1, 6)]
    assert all(isinstance(each, Exchange) for each in turns)
