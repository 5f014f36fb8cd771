"""An agent that asks before it acts is killed at places of its whole life: nothing is lost, and no effect happens twice.

One life asks, answers at once, and goes on; between request, answer and effect there are as many places as anywhere else.
"""

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from kitchener.actors.supervisor import HO2Supervisor
from kitchener.actors.tools.registry import tool
from kitchener.records.prompt import PromptRequest, PromptResponse, ToolUse, Usage
from kitchener.records.turn import TurnResult
from kitchener.runtime import Runtime
from kitchener.testing import CrashRoot, ScriptedProvider, crash_test
from tests.acceptance.stack import QUESTION, open_scripted

MESSAGES = {"ada": ["one", "two"], "bo": ["three", "four"]}
EFFECTS = "effects"


def _answer(request: PromptRequest) -> Any:
    """Two rounds: two effects that ask, then one that does not."""
    if request.wo_type == "classify":
        return QUESTION
    rounds = sum(1 for message in request.messages if message.tool_uses)
    name = str(request.variables["user_message"]).rpartition("It was asked for: ")[2]
    asked = {
        0: [ToolUse("u1", "change", {"what": f"{name} a"}), ToolUse("u2", "change", {"what": f"{name} b"})],
        1: [ToolUse("u3", "add", {"what": f"{name} c"})],
    }.get(rounds)
    if asked is None:
        return {"response_text": f"done with {name}"}
    return PromptResponse(provider_id="scripted", model_id="m", text="", usage=Usage(5, 5), tool_uses=tuple(asked))


class _Answering:
    """A supervisor beside a person who allows the first call of each turn and denies the second, as often as it takes."""

    def __init__(self, supervisor: HO2Supervisor) -> None:
        self._supervisor = supervisor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._supervisor, name)

    async def handle_turn(self, message: str, **options: Any) -> TurnResult:
        result = await self._supervisor.handle_turn(message, **options)
        allowed, denied = result.pending_approval
        first = await self._supervisor.approve(allowed)
        done = await self._supervisor.deny(denied, "not this one")
        assert done is not None
        assert first is None or first == done  # it was answered before
        return done


class _AnsweringRuntime:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def supervisor(self, agent_class: str = "ADMIN") -> _Answering:
        return _Answering(self._runtime.supervisor(agent_class))


@asynccontextmanager
async def build(root: Path) -> AsyncIterator[Runtime]:
    """The agent. Its effects are lines of a file."""

    def effect(what: str) -> str:
        with (root / EFFECTS).open("a") as file:
            file.write(json.dumps(what) + "\n")
        return f"did {what}"

    @tool(requires_approval=True)
    def change(what: str) -> str:
        """Changes something."""
        return effect(what)

    @tool
    def add(what: str) -> str:
        """Adds something."""
        return effect(what)

    async with open_scripted(root / "plane", ScriptedProvider(_answer), tools=[change, add]) as runtime:
        yield cast(Runtime, _AnsweringRuntime(runtime))


def check(found: CrashRoot) -> Iterable[str]:
    """No effect twice, none that was denied, and none missing of a message that has its answer."""
    path = found.root / EFFECTS
    done = Counter(json.loads(line) for line in path.read_text().splitlines()) if path.exists() else Counter[str]()
    yield from [f"effect {what!r} happened {count} times" for what, count in done.items() if count > 1]
    yield from [f"effect {what!r} was denied and happened" for what in done if what.endswith(" b")]
    acknowledged: Mapping[tuple[str, int], str] = found.acknowledged
    for subject, number in acknowledged:
        name = MESSAGES[subject][number]
        yield from [f"effect {what!r} is missing" for what in (f"{name} a", f"{name} c") if what not in done]


def test_kills_between_request_answer_and_effect_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    """On one event loop: which one runs decides nothing about what is durable."""
    report = crash_test(build, MESSAGES, kills=12, check=check)
    assert report.kills >= 10
    assert report.violations == []
