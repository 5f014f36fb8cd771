"""An agent whose client runs tools is killed at places of its whole life: no output is lost, and none is taken twice.

The client keeps what it has returned and gives it again, as a program does that writes down what it has done. Between the turn
that waits, the outputs and the turn that goes on there are as many places as anywhere else.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from kitchener.actors.supervisor import HO2Supervisor
from kitchener.records import events
from kitchener.records.tools.client_tools import ClientTool
from kitchener.records.turn import TurnResult
from kitchener.runtime import Runtime
from kitchener.testing import CrashRoot, crash_test
from tests.acceptance.stack import open_scripted
from tests.faults.crashes.waiting_turns import MESSAGES, answered, recorded, two_rounds

LOOK = ClientTool("look", "Looks.", {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]})


async def converse(supervisor: HO2Supervisor, message: str, **options: Any) -> TurnResult:
    """As a client that runs each call, one output at a time in the first round."""
    result = await supervisor.handle_turn(message, client_tools=[LOOK], **options)
    one, other = (_output(each.arguments) for each in result.client_calls)
    first, second = (each.call_id for each in result.client_calls)
    early = await supervisor.answer_client_calls({first: one})
    more = await supervisor.answer_client_calls({first: one, second: other})
    assert more is not None
    assert early is None or early == more  # it was answered before
    (call,) = more.client_calls
    done = await supervisor.answer_client_calls({call.call_id: _output(call.arguments)})
    assert done is not None
    name = message.split()[0]
    assert done.response == " ".join(f"saw {name} {each}" for each in "abc")
    return done


def _output(arguments: Mapping[str, object]) -> str:
    return f"saw {arguments['what']}"


@asynccontextmanager
async def build(root: Path) -> AsyncIterator[Runtime]:
    """The agent, which has no tools of its own."""
    config: dict[str, Any] = {"client_tools_trusted": True}
    async with open_scripted(root / "plane", two_rounds("look", "look"), admin_tools=None, **config) as runtime:
        yield answered(runtime, converse)


def check(found: CrashRoot) -> Iterable[str]:
    """Each answered message has each of its outputs once, and nobody was told of an effect that may have happened."""
    answers: dict[str, list[object]] = {}
    for entry in recorded(found.root, "HO2", "ho2m.jsonl"):
        if entry["entry_type"] == events.APPROVAL_RESOLVED:
            answers.setdefault(entry["entity_id"], []).append(entry["payload"]["decision"])
    yield from [f"call {each} has the outputs {given}" for each, given in answers.items() if given != ["returned"]]
    if len(answers) < 3 * len(found.acknowledged):
        yield f"{len(found.acknowledged)} messages were answered with {len(answers)} outputs"
    yield from [f"{each} was told of an unknown outcome" for each in found.unknown]


@pytest.mark.timeout(180)
def test_kills_between_call_output_and_reply_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    """On one event loop: which one runs decides nothing about what is durable."""
    report = crash_test(build, MESSAGES, kills=4, check=check)
    assert report.kills >= 3
    assert report.violations == []


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_kills_at_most_places_of_a_client_call(tmp_path: Path, backend: Literal["asyncio", "trio"]) -> None:
    """Taking an output has no effect, so that its outcome is never unknown."""
    report = crash_test(build, MESSAGES, kills=200, check=check, backend=backend)
    assert report.kills >= 200
    assert report.violations == []
    assert report.outcome_unknown == 0
