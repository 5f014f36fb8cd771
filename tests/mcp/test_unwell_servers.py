"""Servers that are there and do not answer as they should, or are gone: what is told of them, and that they come back.

See docs/mcp.md.
"""

from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from kitchener.config import McpServerConfig
from kitchener.mcp.server import ServerStatistics
from kitchener.runtime import Runtime
from tests.mcp.shared.servers import faulty, faulty_over_http, open_desk, say, until
from tests.shared.logs import captured_logs

# On trio, the library's HTTP client leaves generators of answers that it did not read to their end to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

ELSEWHERE = "http://127.0.0.1:9/mcp"
UNKNOWN = "outcome unknown: server 'fs' gave no result ({}); the call may have had its effect, so check before you repeat it"
UNDONE = "the call did not reach server 'fs', and nothing was done: {}"

FAULTS = [
    ("500", UNKNOWN, "it answered HTTP 500 (Internal Server Error)"),
    ("429", UNKNOWN, "it answered HTTP 429 (Too Many Requests)"),
    ("401", UNDONE, "the server refuses the token or the headers (HTTP 401)"),
    ("404", UNDONE, "no MCP server is at its address (HTTP 404); check `url`"),
    (f"to:{ELSEWHERE}", UNDONE, f"it redirects to '{ELSEWHERE}'; set `url` to this address if it is the right server"),
    ("page", UNKNOWN, "it answered with 'text/html', which is no message of the protocol; check `url`"),
    ("broken", UNKNOWN, "its answer is no message of the protocol"),
    ("wordless", UNKNOWN, "its answer is no message of the protocol"),
    ("packed", UNKNOWN, "its answer was cut off"),
    ("cut", UNKNOWN, "its answer was cut off"),
    ("closes", UNKNOWN, "it closed the connection before it answered"),
]


def found(runtime: Runtime) -> ServerStatistics:
    return runtime.statistics()["mcp_servers"]["fs"]


async def until_connected(runtime: Runtime) -> None:
    await until(lambda: found(runtime)["state"] == "connected")


async def test_a_call_that_http_answers_in_place_of_the_protocol_fails_alone_and_in_plain_words(tmp_path: Path) -> None:
    """One after the other, at a server that is started once: the connection goes on after each of them."""
    folder = tmp_path / "fs"
    with faulty_over_http(folder, ["echo"]) as server:
        async with open_desk(tmp_path, {"fs": server.settings}) as (runtime, _):
            for fault, what, why in FAULTS:
                (folder / "fault").write_text(f"{fault} tools/call")
                assert what.format(why) in await say(runtime, 'fs__echo {"text": "on"}'), fault
                (folder / "fault").unlink()
                assert await say(runtime, 'fs__echo {"text": "on"}') == "on", fault
                assert (found(runtime)["starts"], found(runtime)["problem"]) == (1, ""), fault


@pytest.mark.parametrize(
    ("fault", "why"),
    [pytest.param(fault, why, marks=[] if fault in ("404", "cut") else [pytest.mark.soak]) for fault, _, why in FAULTS[::3]],
)
async def test_a_server_over_http_that_answers_nothing_any_more_is_told_with_its_reason(
    tmp_path: Path, fault: str, why: str
) -> None:
    """Regression: it was told to be connected for ever. Nobody calls it here."""
    folder = tmp_path / "fs"
    with faulty_over_http(folder, ["echo"], backoff_max_s=0.2, max_restarts=3) as server:
        async with open_desk(tmp_path, {"fs": server.settings}) as (runtime, _):
            (folder / "fault").write_text(fault)
            await until(lambda: found(runtime)["state"] == "failed")
            assert (found(runtime)["problem"], found(runtime)["tools"]) == (why, 0)
            (folder / "fault").unlink()
            await until_connected(runtime)
            assert await say(runtime, 'fs__echo {"text": "back"}') == "back"


async def test_a_server_over_http_that_ends_unused_is_missed_and_comes_back_even_after_it_was_given_up(tmp_path: Path) -> None:
    """Regression: it counted as connected until it was called, and once given up it stayed so until a restart."""
    with faulty_over_http(tmp_path / "fs", ["echo"], backoff_max_s=0.2, max_restarts=2) as server, captured_logs() as logs:
        async with open_desk(tmp_path, {"fs": server.settings}) as (runtime, _):
            await anyio.to_thread.run_sync(server.kill)
            await until(lambda: found(runtime)["state"] == "failed")
            assert found(runtime)["problem"] == f"cannot connect to 127.0.0.1:{server.port}: connection refused"
            assert await say(runtime, "fs__echo") == "there is no fs__echo"
            await anyio.to_thread.run_sync(server.start)
            await until_connected(runtime)
            assert await say(runtime, 'fs__echo {"text": "back"}') == "back"
    assert [each["event"] for each in logs].count("MCP server given up") == 1


async def test_a_server_over_http_that_was_given_up_stays_so_until_it_answers(tmp_path: Path) -> None:
    server = McpServerConfig(url=ELSEWHERE, backoff_max_s=0.1, max_restarts=2)
    with captured_logs() as logs:
        async with open_desk(tmp_path, {"fs": server}) as (runtime, _):
            await until(lambda: found(runtime)["state"] == "failed")
            for _ in range(40):
                await anyio.sleep(0.01)
                assert found(runtime)["state"] == "failed"
    assert [each["event"] for each in logs].count("MCP server given up") == 1


async def test_a_server_over_http_that_hangs_is_missed_after_a_call_that_it_did_not_answer(tmp_path: Path) -> None:
    folder = tmp_path / "fs"
    limits = {"call_timeout_s": 0.3, "connect_timeout_s": 3.0, "backoff_max_s": 30.0}
    with faulty_over_http(folder, ["echo"], **limits) as server:
        async with open_desk(tmp_path, {"fs": server.settings}) as (runtime, _):
            (folder / "fault").write_text("dozes")
            assert "did not end within its time limit of 0.3 s" in await say(runtime, "fs__echo")
            await until(lambda: found(runtime)["state"] != "connected")
            assert " within " in found(runtime)["problem"]
            (folder / "fault").unlink()
            await until_connected(runtime)


async def test_a_command_that_answers_nothing_is_silent_until_it_answers_again(tmp_path: Path) -> None:
    """It is not stopped: it may be busy with a call that nobody waits for."""
    folder = tmp_path / "fs"
    server = faulty(folder, ["doze", "echo"], call_timeout_s=0.3, connect_timeout_s=1.0)
    async with open_desk(tmp_path, {"fs": server}) as (runtime, _):
        assert "did not end within its time limit of 0.3 s" in await say(runtime, "fs__doze")
        await until(lambda: found(runtime)["state"] == "silent")
        assert found(runtime)["problem"] == "it did not list its tools within connect_timeout_s = 1"
        (folder / "awake").touch()
        await until_connected(runtime)
        assert (found(runtime)["starts"], found(runtime)["problem"]) == (1, "")
        assert await say(runtime, 'fs__echo {"text": "on"}') == "on"


@pytest.mark.parametrize("transport", ["command", "http"])
async def test_errors_of_a_server_are_its_own_whatever_their_code_and_words(tmp_path: Path, transport: str) -> None:
    """Regression: the code -32000 ended the connection, and a command whose error had no message let its call wait."""
    folder, tools = tmp_path / "fs", ["no_message", "no_reason", "own_error", "echo"]

    async def check(settings: Any) -> None:
        async with open_desk(tmp_path, {"fs": settings}) as (runtime, _):
            assert UNKNOWN.format("its answer is no message of the protocol") in await say(runtime, "fs__no_message")
            assert "server 'fs' refused the call: it gives no reason (-32603)" in await say(runtime, "fs__no_reason")
            assert "server 'fs' refused the call: the desk is closed (-32000)" in await say(runtime, "fs__own_error")
            assert await say(runtime, 'fs__echo {"text": "on"}') == "on"
            assert (found(runtime)["starts"], found(runtime)["state"]) == (1, "connected")

    if transport == "command":
        await check(faulty(folder, tools))
    else:
        with faulty_over_http(folder, tools) as server:
            await check(server.settings)


async def test_a_redirect_to_another_path_of_the_server_is_followed(tmp_path: Path) -> None:
    """As servers answer where `url` lacks a slash at its end."""
    folder = tmp_path / "fs"
    with faulty_over_http(folder, ["echo"]) as server:
        (folder / "fault").write_text("to:/elsewhere")
        async with open_desk(tmp_path, {"fs": server.settings}) as (runtime, _):
            assert await say(runtime, 'fs__echo {"text": "on"}') == "on"
