"""An agent whose client runs tools is killed at places of its whole life: no output is lost, and none is taken twice.

The client keeps what it has returned and gives it again, as a program does that writes down what it has done. Between the turn
that waits, the outputs and the turn that goes on there are as many places as anywhere else.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, cast

import pytest

from kitchener.actors.supervisor import HO2Supervisor
from kitchener.records import events
from kitchener.records.prompt import PromptRequest, PromptResponse, ToolUse, Usage
from kitchener.records.tools.client_tools import ClientTool
from kitchener.records.turn import TurnResult
from kitchener.runtime import Runtime
from kitchener.testing import CrashRoot, ScriptedProvider, crash_test
from tests.acceptance.stack import QUESTION, open_scripted
from tests.cli.commands import read_lines

MESSAGES = {"ada": ["one", "two"], "bo": ["three", "four"]}
LOOK = ClientTool("look", "Looks.", {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]})


def _answer(request: PromptRequest) -> Any:
    """Two rounds of calls, then a reply that repeats what they returned."""
    if request.wo_type == "classify":
        return QUESTION
    rounds = sum(1 for message in request.messages if message.tool_uses)
    name = str(request.variables["user_message"]).rpartition("It was asked for: ")[2]
    asked = {
        0: [ToolUse("u1", "look", {"at": f"{name} a"}), ToolUse("u2", "look", {"at": f"{name} b"})],
        1: [ToolUse("u3", "look", {"at": f"{name} c"})],
    }.get(rounds)
    if asked is None:
        return {"response_text": " ".join(each.content for each in request.messages if each.role == "tool")}
    return PromptResponse(provider_id="scripted", model_id="m", text="", usage=Usage(5, 5), tool_uses=tuple(asked))


class _Client:
    """A supervisor beside a client that runs each call, one output at a time in the first round."""

    def __init__(self, supervisor: HO2Supervisor) -> None:
        self._supervisor = supervisor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._supervisor, name)

    async def handle_turn(self, message: str, **options: Any) -> TurnResult:
        result = await self._supervisor.handle_turn(message, client_tools=[LOOK], **options)
        one, other = (_output(each.arguments) for each in result.client_calls)
        first, second = (each.call_id for each in result.client_calls)
        early = await self._supervisor.answer_client_calls({first: one})
        more = await self._supervisor.answer_client_calls({first: one, second: other})
        assert more is not None
        assert early is None or early == more  # it was answered before
        (call,) = more.client_calls
        done = await self._supervisor.answer_client_calls({call.call_id: _output(call.arguments)})
        assert done is not None
        name = message.split()[0]
        assert done.response == " ".join(f"saw {name} {each}" for each in "abc")
        return done


def _output(arguments: Mapping[str, object]) -> str:
    return f"saw {arguments['at']}"


class _ClientRuntime:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def supervisor(self, agent_class: str = "ADMIN") -> _Client:
        return _Client(self._runtime.supervisor(agent_class))


@asynccontextmanager
async def build(root: Path) -> AsyncIterator[Runtime]:
    """The agent, which has no tools of its own."""
    config: dict[str, Any] = {"client_tools_trusted": True}
    async with open_scripted(root / "plane", ScriptedProvider(_answer), admin_tools=None, **config) as runtime:
        yield cast(Runtime, _ClientRuntime(runtime))


def check(found: CrashRoot) -> Iterable[str]:
    """Each answered message has each of its outputs once, and nobody was told of an effect that may have happened."""
    answers: dict[str, list[object]] = {}
    for line in read_lines(found.root / "plane" / "HO2" / "ADMIN" / "ho2m.jsonl"):
        entry = line.get("entry")
        if entry is not None and entry["entry_type"] == events.APPROVAL_RESOLVED:
            answers.setdefault(entry["entity_id"], []).append(entry["payload"]["decision"])
    yield from [f"call {each} has the outputs {given}" for each, given in answers.items() if given != ["returned"]]
    if len(answers) < 3 * len(found.acknowledged):
        yield f"{len(found.acknowledged)} messages were answered with {len(answers)} outputs"
    yield from [f"{each} was told of an unknown outcome" for each in found.unknown]


@pytest.mark.timeout(180)
def test_kills_between_call_output_and_reply_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    """On one event loop: which one runs decides nothing about what is durable."""
    report = crash_test(build, MESSAGES, kills=12, check=check)
    assert report.kills >= 10
    assert report.violations == []


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_kills_at_most_places_of_a_client_call(tmp_path: Path, backend: Literal["asyncio", "trio"]) -> None:
    """Taking an output has no effect, so that its outcome is never unknown."""
    report = crash_test(build, MESSAGES, kills=200, check=check, backend=backend)
    assert report.kills >= 200
    assert report.violations == []
    assert report.outcome_unknown == 0
