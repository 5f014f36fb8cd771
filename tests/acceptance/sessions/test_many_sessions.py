"""A hundred sessions at once, each with three messages at once: no session is disturbed by another, no message is lost."""

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kitchener.errors import Overloaded, SessionBusy, TurnReplaced
from kitchener.ids import SessionId
from kitchener.ledger import StoredEntry
from kitchener.records import events
from kitchener.records.turn import TurnResult
from tests.acceptance.stack import check_lives, open_scripted, outcome, portrait, read_all
from tests.shared.payloads import payload_of

SESSIONS, MESSAGES = 100, 3


def check_contiguous(entries: list[StoredEntry]) -> list[tuple[str, str]]:
    """Asserts that a session's entries form one turn after another, without a gap in their numbers and with nothing open.

    Returns:
        message and reply of each completed turn
    """
    assert entries[0].entry_type == events.SESSION_START
    turns: list[tuple[str, str]] = []
    current, message, number = "", "", 0
    for entry in entries[1:]:
        kind = entry.entry_type
        if kind == events.TURN_REJECTED:
            continue
        if kind == events.TURN_STARTED:
            number += 1
            assert entry.entity_id == f"T-{payload_of(entry)['session_id'][4:]}-{number:06d}"
            current, message = entry.entity_id, payload_of(entry)["user_message"]
        assert entry.payload["turn_id"] == current
        if kind == events.TURN_COMPLETED:
            turns.append((message, payload_of(entry)["response"]))
    check_lives(entries)
    ends = [entry.entity_id for entry in entries if entry.entry_type in (events.TURN_COMPLETED, events.TURN_ABORTED)]
    assert ends == [entry.entity_id for entry in entries if entry.entry_type == events.TURN_STARTED]
    return turns


async def test_a_hundred_sessions_with_three_overlapping_messages_each(tmp_path: Path) -> None:
    """Every message has its own reply and its own contiguous turn; no number is missing; every chain verifies."""
    results: dict[tuple[SessionId, int], TurnResult | Exception] = {}
    async with open_scripted(tmp_path, limits={"max_running_turns": 25, "max_active_sessions": 50}) as runtime:
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
            by_session[payload_of(entry)["session_id"]].append(entry)
        assert set(by_session) == set(sessions)
        for session_id, entries in by_session.items():
            expected = [(f"{session_id} {n}", f"echo: {session_id} {n}") for n in range(MESSAGES)]
            assert sorted(check_contiguous(entries)) == expected
            planned = [entry.entity_id for entry in entries if entry.entry_type == events.WO_PLANNED]
            assert planned == [f"WO-{session_id}-{n:03d}" for n in range(1, 2 * MESSAGES + 1)]
        for ledger in (ledgers.ho1m, ledgers.ho2m):
            assert (await ledger.verify()).ok


@pytest.mark.parametrize("policy", ["queue", "reject", "replace"])
async def test_a_storm_of_messages_and_cancellations_leaves_every_session_sound(tmp_path: Path, policy: str) -> None:
    """Too many messages for every queue, a third of their callers gone after a while: all that is on record fits together.

    Nothing hangs, nothing keeps running, every reply that a caller got stands in the ledger, a restart finds each session as
    it was.
    """
    dice = random.Random(policy)
    limits = {"max_running_turns": 10, "max_waiting_turns": 60, "max_active_sessions": 12, "executor_concurrency": 6}
    config: dict[str, Any] = {"limits": limits, "overlap_policy": policy, "session_queue": 2, "verify_with_model": True}
    results: list[TurnResult | Exception] = []
    async with open_scripted(tmp_path, **config) as runtime:
        supervisor = runtime.supervisor()
        sessions = [await supervisor.start_session() for _ in range(16)]

        async def send(message: str, session_id: SessionId, patience: int | None, key: str | None) -> None:
            async with anyio.create_task_group() as tasks:

                async def call() -> None:
                    results.append(await outcome(supervisor.handle_turn(message, session_id=session_id, idempotency_key=key)))
                    tasks.cancel_scope.cancel()

                tasks.start_soon(call)
                for _ in range(patience if patience is not None else 0):
                    await anyio.lowlevel.checkpoint()
                if patience is not None:
                    tasks.cancel_scope.cancel()

        with anyio.fail_after(30):
            for wave in (range(64), range(64, 100)):  # in the first, every session's key has yet to be made
                async with anyio.create_task_group() as tasks:
                    for n in wave:
                        patience = dice.choice((None, None, dice.randrange(200)))
                        key = dice.choice((None, f"key {n}"))
                        tasks.start_soon(send, f"message {n}", dice.choice(sessions), patience, key)
            assert isinstance(await outcome(supervisor.handle_turn("still there?")), TurnResult)
        busy = runtime.statistics()
        assert (busy["running_turns"], busy["waiting_turns"]) == (0, 0)
        assert {lane.running for lanes in busy["mailboxes"].values() for lane in lanes.values()} == {0}
        known = [portrait(await supervisor.session(session_id)) for session_id in sessions]
    replies = [result for result in results if isinstance(result, TurnResult)]
    assert {type(result) for result in results} <= {TurnResult, Overloaded, SessionBusy, TurnReplaced}
    assert len(replies) > 16
    async with open_scripted(tmp_path, **config) as runtime:
        recorded: list[str] = []
        for session_id, before in zip(sessions, known, strict=True):
            entries = await read_all(runtime.ledgers().ho2m, session_id=session_id)
            recorded += [response for message, response in check_contiguous(entries) if response == f"echo: {message}"]
            assert portrait(await runtime.supervisor().session(session_id)) == before
        assert {result.response for result in replies} <= set(recorded)
        assert len(recorded) == len(set(recorded))
