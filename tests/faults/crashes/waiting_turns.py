"""What the tests that kill agents with waiting turns share: conversations, a model, and a runtime that is answered."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, cast

from kitchener.actors.supervisor import HO2Supervisor
from kitchener.model_usage import Usage
from kitchener.records.prompt import PromptRequest, PromptResponse, ToolUse
from kitchener.records.turn import TurnResult
from kitchener.runtime import Runtime
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import QUESTION
from tests.cli.shared.commands import read_lines

MESSAGES = {"ada": ["one", "two"], "bo": ["three", "four"]}

Conversation = Callable[..., Awaitable[TurnResult]]
"""Sends a message, given the supervisor and the arguments of `handle_turn`, and answers until the turn waits for nothing."""


def two_rounds(first: str, second: str) -> ScriptedProvider:
    """A model that calls the tool `first` twice, then `second` once, and then replies with what they returned."""

    def answer(request: PromptRequest) -> Any:
        if request.wo_type == "classify":
            return QUESTION
        rounds = sum(1 for message in request.messages if message.tool_uses)
        name = str(request.variables["user_message"]).rpartition("It was asked for: ")[2]
        asked = {
            0: [ToolUse("u1", first, {"what": f"{name} a"}), ToolUse("u2", first, {"what": f"{name} b"})],
            1: [ToolUse("u3", second, {"what": f"{name} c"})],
        }.get(rounds)
        if asked is None:
            return {"response_text": " ".join(each.content for each in request.messages if each.role == "tool")}
        return PromptResponse(provider_id="scripted", model_id="m", text="", usage=Usage(5, 5), tool_uses=tuple(asked))

    return ScriptedProvider(answer)


class _AnsweredSupervisor:
    """A supervisor whose messages are answered to their end."""

    def __init__(self, supervisor: HO2Supervisor, converse: Conversation) -> None:
        self._supervisor, self._converse = supervisor, converse

    def __getattr__(self, name: str) -> Any:
        return getattr(self._supervisor, name)

    async def handle_turn(self, message: str, **options: Any) -> TurnResult:
        return await self._converse(self._supervisor, message, **options)


class _AnsweredRuntime:
    def __init__(self, runtime: Runtime, converse: Conversation) -> None:
        self._runtime, self._converse = runtime, converse

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def supervisor(self, agent_class: str = "ADMIN") -> _AnsweredSupervisor:
        return _AnsweredSupervisor(self._runtime.supervisor(agent_class), self._converse)


def answered(runtime: Runtime, converse: Conversation) -> Runtime:
    """The runtime with a `handle_turn` that is the whole of `converse`."""
    return cast(Runtime, _AnsweredRuntime(runtime, converse))


def recorded(root: Path, tier: str, name: str) -> list[Mapping[str, Any]]:
    """The entries of a ledger of the agent under `root`, as far as the kill left them."""
    return [line["entry"] for line in read_lines(root / "plane" / tier / "ADMIN" / name) if "entry" in line]
