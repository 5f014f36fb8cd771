"""A tool of a server asks a person, who answers later, also another process. See docs/mcp.md and docs/approval.md."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kitchener.config import ApprovalConfig, McpServerConfig
from kitchener.records import events
from kitchener.replaying import replay_session
from tests.mcp.shared.servers import calls, faulty, faulty_over_http, open_desk, settings_of

Opened = Callable[[Path, list[Any]], Any]


LIBRARY = '''
import sys
from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.server.request_state import RequestStateSecurity
from pydantic import BaseModel


class Sure(BaseModel):
    really: bool


def sure(path: str) -> Elicit[Sure]:
    return Elicit(f"Remove {path}?", Sure)


kept = RequestStateSecurity(keys=[b"0" * 32]) if sys.argv[1:] == ["keeps"] else None
server = MCPServer("desk", request_state_security=kept)


@server.tool()
def remove(path: str, answer: Annotated[Sure, Resolve(sure)]) -> str:
    """Removes a file."""
    return f"removed {path}" if answer.really else f"kept {path}"


server.run()
'''
"""A server of the vendor's library. Without a key of its own it forgets its questions when it ends."""


@contextmanager
def over_stdio(folder: Path, tools: list[Any]) -> Iterator[McpServerConfig]:
    yield faulty(folder, tools)


@contextmanager
def at_first_use(folder: Path, tools: list[Any]) -> Iterator[McpServerConfig]:
    yield faulty(folder, tools, start="first_use")


@contextmanager
def over_http(folder: Path, tools: list[Any]) -> Iterator[McpServerConfig]:
    with faulty_over_http(folder, tools) as server:
        yield server.settings


@pytest.mark.parametrize("reached", [over_stdio, at_first_use, over_http])
async def test_a_question_waits_through_a_restart_and_its_answer_resumes_the_call(tmp_path: Path, reached: Opened) -> None:
    """The server too is another process by then. Ada says yes; Bo says no, and nothing is sent."""
    folder = tmp_path / "fs"
    folder.mkdir()
    (folder / "stateless").touch()
    with reached(folder, ["ask"]) as server:
        async with open_desk(tmp_path, {"fs": server}) as (runtime, _):
            supervisor = runtime.supervisor()
            ada = await supervisor.handle_turn('fs__ask {"path": "a.txt"}', subject_id="ada")
            bo = await supervisor.handle_turn('fs__ask {"path": "b.txt"}', subject_id="bo")
            assert "The tool asks (mcp:fs, not trusted): Remove a.txt?" in ada.response
            entries = runtime.ledgers().ho2m.read(session_id=ada.session_id, entry_type=events.APPROVAL_REQUESTED)
            (asked,) = [each.payload async for each in entries]
        assert (asked["reason"], asked["tool"]) == ("input_required", "fs__ask")
        async with open_desk(tmp_path, {"fs": server}) as (runtime, _):
            supervisor = runtime.supervisor()
            done = await supervisor.approve(ada.pending_approval[0], answer={"really": True}, answered_by="ada")
            assert done is not None
            assert done.response == "removed a.txt"
            again = await supervisor.approve(ada.pending_approval[0], answer={"really": True})
            assert again is not None
            assert again.turn_id == done.turn_id
            refused = await supervisor.deny(bo.pending_approval[0], "keep it")
            assert refused is not None
            assert "keep it" in refused.response
        assert calls(folder) == ["ask"] * 3
        (answer,) = map(json.loads, (folder / "answers").read_text().splitlines())
        assert answer["responses"] == {"q": {"action": "accept", "content": {"really": True}}}
        assert answer["state"]["path"] == "a.txt"
        if server.command is not None:
            assert answer["state"]["pid"] != answer["pid"]
        for each in (ada, bo):
            report = await replay_session(each.session_id, config=settings_of(tmp_path, {"fs": server}))
            assert report.is_identical, report.text()
            assert len(report.turns) == 2


async def test_a_server_that_has_forgotten_its_question_is_told_as_such(tmp_path: Path) -> None:
    folder = tmp_path / "fs"
    folder.mkdir()
    (folder / "stateless").touch()
    server = faulty(folder, ["ask_here"])
    async with open_desk(tmp_path, {"fs": server}) as (runtime, _):
        asks = await runtime.supervisor().handle_turn('fs__ask_here {"path": "a.txt"}', subject_id="ada")
    async with open_desk(tmp_path, {"fs": server}) as (runtime, _):
        done = await runtime.supervisor().approve(asks.pending_approval[0], answer={"really": True})
        assert done is not None
        assert "no longer takes the answer: Invalid or expired requestState (-32602); call the tool again" in done.response
    assert not (folder / "answers").exists()


@pytest.mark.parametrize(
    ("kind", "told", "anyio_backend"),
    [
        ("keeps", "removed a.txt", "asyncio"),
        pytest.param("forgets", "no longer takes the answer", "trio", marks=pytest.mark.soak),
    ],
)
async def test_a_server_of_the_library_takes_the_answer_in_another_process_if_its_key_lasts(
    tmp_path: Path, kind: str, told: str
) -> None:
    """First a person allows the call, then its question is answered, each time by a server that was started anew.

    The one that forgets costs seconds of loading the vendor's library; what is told of it, the test before this one shows.
    """
    (tmp_path / "desk.py").write_text(LIBRARY)
    desk = McpServerConfig(command=sys.executable, args=(str(tmp_path / "desk.py"), kind), connect_timeout_s=40.0)
    async with open_desk(tmp_path, {"desk": desk}, approval=ApprovalConfig()) as (runtime, _):
        waits = await runtime.supervisor().handle_turn('desk__remove {"path": "a.txt"}', subject_id="ada")
        asks = await runtime.supervisor().approve(waits.pending_approval[0])
        assert asks is not None
        assert "Remove a.txt?" in asks.response
    async with open_desk(tmp_path, {"desk": desk}, approval=ApprovalConfig()) as (runtime, _):
        done = await runtime.supervisor().approve(asks.pending_approval[0], answer={"really": True})
        assert done is not None
        assert told in done.response
