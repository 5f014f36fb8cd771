"""Two hundred sessions at once, each with three messages at once: no session is disturbed by another, no message is lost."""

from collections import defaultdict
from pathlib import Path

import anyio

from kitchener.ids import SessionId
from kitchener.ledger import StoredEntry
from kitchener.records import events
from kitchener.records.turn import TurnResult
from tests.acceptance.stack import open_scripted, outcome, read_all

SESSIONS, MESSAGES = 200, 3


def check_contiguous(entries: list[StoredEntry]) -> list[tuple[str, str]]:
    """Asserts that a session's entries form one turn after another; the message and reply of each."""
    assert entries[0].entry_type == events.SESSION_START
    turns: list[tuple[str, str]] = []
    current, message = "", ""
    for entry in entries[1:]:
        if entry.entry_type == events.TURN_STARTED:
            assert current == ""
            current, message = entry.entity_id, entry.payload["user_message"]
        assert entry.payload["turn_id"] == current
        if entry.entry_type == events.TURN_COMPLETED:
            turns.append((message, entry.payload["response"]))
            current = ""
    assert current == ""
    return turns


async def test_two_hundred_sessions_with_three_overlapping_messages_each(tmp_path: Path) -> None:
    """Every message has its own reply and its own contiguous turn; no number is missing; every chain verifies."""
    results: dict[tuple[SessionId, int], TurnResult | Exception] = {}
    async with open_scripted(tmp_path, limits={"max_running_turns": 50, "max_active_sessions": 100}) as runtime:
        supervisor, ledgers = runtime.supervisor(), runtime.ledgers()
        sessions = [await supervisor.start_session(subject_id=f"subject {n % 7}") for n in range(SESSIONS)]

        async def send(session_id: SessionId, n: int) -> None:
            results[session_id, n] = await outcome(supervisor.handle_turn(f"{session_id} {n}", session_id=session_id))

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                for n in range(MESSAGES):
                    for session_id in sessions:
                        tasks.start_soon(send, session_id, n)
        for (session_id, n), result in results.items():
            assert isinstance(result, TurnResult), result
            assert (result.session_id, result.response) == (session_id, f"echo: {session_id} {n}")
        assert len(results) == SESSIONS * MESSAGES
        assert runtime.statistics()["running_turns"] == 0
    async with open_scripted(tmp_path) as runtime:
        ledgers = runtime.ledgers()
        by_session: defaultdict[SessionId, list[StoredEntry]] = defaultdict(list)
        for entry in await read_all(ledgers.ho2m):
            by_session[entry.payload["session_id"]].append(entry)
        assert set(by_session) == set(sessions)
        for session_id, entries in by_session.items():
            expected = [(f"{session_id} {n}", f"echo: {session_id} {n}") for n in range(MESSAGES)]
            assert sorted(check_contiguous(entries)) == expected
            planned = [entry.entity_id for entry in entries if entry.entry_type == events.WO_PLANNED]
            assert planned == [f"WO-{session_id}-{n:03d}" for n in range(1, 2 * MESSAGES + 1)]
        for ledger in (ledgers.ho1m, ledgers.ho2m):
            assert (await ledger.verify()).ok
