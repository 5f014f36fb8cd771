"""A server that ends in the middle of a call while many sessions wait for it, over both transports. See docs/mcp.md."""

from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from kitchener.config import ToolLimits
from kitchener.records import events
from kitchener.runtime import Runtime
from tests.mcp.shared.servers import HttpProcess, calls, faulty, faulty_over_http, listed, open_desk, say, until

SESSIONS = 20
IDEMPOTENT = {"idempotentHint": True}


async def ask_in_many_sessions(runtime: Runtime) -> dict[int, str]:
    """The replies of twenty sessions, of which one asks for `die`."""
    replies: dict[int, str] = {}

    async def ask(number: int) -> None:
        message = "fs__die" if number == 0 else f'fs__echo {{"text": "{number}"}}'
        replies[number] = await say(runtime, message, subject_id=f"user-{number}")

    async with anyio.create_task_group() as tasks:
        for number in range(SESSIONS):
            tasks.start_soon(ask, number)
    return replies


def check(replies: dict[int, str], folder: Path, cause: str) -> None:
    """Only the call that ran failed, and it was made once."""
    assert "outcome unknown: server 'fs' gave no result" in replies[0]
    assert "the call may have had its effect, so check before you repeat it" in replies[0]
    assert cause in replies[0]
    assert [replies[number] for number in range(1, SESSIONS)] == [f"{number}" for number in range(1, SESSIONS)]
    assert sorted(calls(folder)) == ["die", *["echo"] * (SESSIONS - 1)]


async def test_a_killed_command_fails_only_the_call_that_it_had_and_never_gets_it_again(tmp_path: Path) -> None:
    """Twenty sessions wait for the one place that the server has. It is started again, and the record tells the same."""
    folder = tmp_path / "fs"
    server = faulty(folder, ["die", "echo"], max_calls=1, trust_annotations=True)
    async with open_desk(tmp_path, {"fs": server}) as (runtime, _):
        replies = await ask_in_many_sessions(runtime)
        await until(lambda: runtime.statistics()["mcp_servers"]["fs"]["starts"] == 2)  # also where `die` came last
        found = [each.payload async for each in runtime.ledgers().ho1m.read(entry_type=events.TOOL_CALL)]
    check(replies, folder, "out of memory")
    assert sum("error" in each for each in found) == 1
    assert len(found) == SESSIONS


async def test_a_killed_server_over_http_fails_only_the_call_that_it_had_and_never_gets_it_again(tmp_path: Path) -> None:
    """Somebody starts it again after a while. Until then the others wait, and nothing is sent."""
    folder = tmp_path / "fs"
    with faulty_over_http(folder, ["die", "echo"], max_calls=1, max_restarts=1_000, backoff_max_s=0.2) as server:
        async with open_desk(tmp_path, {"fs": server.settings}) as (runtime, _), anyio.create_task_group() as tasks:
            tasks.start_soon(_start_when_missed, server, runtime)
            replies = await ask_in_many_sessions(runtime)
        check(replies, folder, "")


@pytest.mark.parametrize("status", [None, 404, 400])
async def test_a_call_that_a_restarted_server_did_not_take_is_made_once_more(tmp_path: Path, status: int | None) -> None:
    """Also one with effects: a server that is not there, or does not know the session any more, has done nothing."""
    folder = tmp_path / "fs"
    with faulty_over_http(folder, ["echo"], max_restarts=1_000, backoff_max_s=0.2) as server:
        if status is not None:
            (folder / "sessions").write_text(str(status))
        async with open_desk(tmp_path, {"fs": server.settings}) as (runtime, _):
            assert await say(runtime, 'fs__echo {"text": "before"}') == "before"
            await anyio.to_thread.run_sync(server.kill)
            if status is not None:
                await anyio.to_thread.run_sync(server.start)
            async with anyio.create_task_group() as tasks:
                if status is None:
                    tasks.start_soon(_start_when_missed, server, runtime)
                assert await say(runtime, 'fs__echo {"text": "after"}') == "after"
        assert calls(folder) == ["echo"] * 2


async def _start_when_missed(server: HttpProcess, runtime: Runtime) -> None:
    await until(lambda: runtime.statistics()["mcp_servers"]["fs"]["state"] != "connected")
    await anyio.to_thread.run_sync(server.start)


async def test_a_call_of_a_server_that_stays_away_ends_in_time_and_says_that_it_was_not_started(tmp_path: Path) -> None:
    with faulty_over_http(tmp_path / "fs", ["echo"], max_restarts=1_000, backoff_max_s=0.5, call_timeout_s=2) as server:
        async with open_desk(tmp_path, {"fs": server.settings}) as (runtime, _):
            await anyio.to_thread.run_sync(server.kill)
            await until(lambda: runtime.statistics()["mcp_servers"]["fs"]["state"] != "connected")
            reply = await say(runtime, "fs__echo")
    gone = f"cannot connect to 127.0.0.1:{server.port}: connection refused"
    assert f"was not started: server 'fs' was not connected ({gone}) within its time limit of 2 s or the turn" in reply


async def test_a_call_that_gets_no_place_in_its_time_says_that_it_was_not_started(tmp_path: Path) -> None:
    folder = tmp_path / "fs"
    server = faulty(folder, ["hold", "echo"], max_calls=1)
    async with (
        open_desk(tmp_path, {"fs": server}, tool_limits={"fs__echo": ToolLimits(timeout_s=0.3)}) as (runtime, _),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(say, runtime, "fs__hold")
        await until(lambda: runtime.statistics()["mcp_servers"]["fs"]["running"] == 1)
        reply = await say(runtime, "fs__echo", subject_id="bob")
        tasks.cancel_scope.cancel()
    assert "was not started: server 'fs' had no place free (`max_calls` = 1) within its time limit of 0.3 s" in reply
    assert calls(folder) == ["hold"]


@pytest.mark.parametrize(("hints", "is_repeated"), [({}, False), (IDEMPOTENT, True)], ids=["plain", "idempotent"])
async def test_only_a_call_that_may_be_repeated_is_made_again(tmp_path: Path, hints: Any, is_repeated: bool) -> None:
    folder = tmp_path / "fs"
    server = faulty(folder, [listed("die_once", annotations=hints)], trust_annotations=True)
    async with open_desk(tmp_path, {"fs": server}) as (runtime, _):
        reply = await say(runtime, "fs__die_once")
    assert calls(folder) == ["die_once"] * (2 if is_repeated else 1)
    assert reply == "die_once ran" if is_repeated else "outcome unknown" in reply


async def test_hints_of_a_server_that_is_not_believed_repeat_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "fs"
    async with open_desk(tmp_path, {"fs": faulty(folder, [listed("die_once", annotations=IDEMPOTENT)])}) as (runtime, _):
        assert "outcome unknown" in await say(runtime, "fs__die_once")
    assert calls(folder) == ["die_once"]
