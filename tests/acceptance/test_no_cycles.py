"""A turn's objects are freed when it ends: its prompts and its texts do not wait in cycles for a garbage collection.

A server lets collections become rare (`tune_gc`), and prompts are long.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener import HO2Supervisor, tool
from kitchener.errors import ProviderError, TurnTimeout
from kitchener.records.prompt import PromptRequest, ToolUse
from kitchener.testing import ScriptedProvider
from tests.acceptance.context.context_kit import ENFORCE
from tests.acceptance.stack import QUESTION, echo, open_scripted
from tests.shared.cycles import left_in_cycles

Turn = Callable[[HO2Supervisor, str], Awaitable[object]]


@tool(read_only=True)
async def look(place: str) -> str:
    """Looks."""
    return f"nothing at {place}"


@tool(read_only=True)
async def stumble(place: str) -> str:
    """Fails."""
    raise ValueError(place)


def calling(*tool_ids: str) -> Callable[[PromptRequest], Any]:
    """A model that calls these tools once, side by side, and then answers."""

    def answer(request: PromptRequest) -> Any:
        if request.wo_type == "classify":
            return QUESTION
        if any(message.role == "tool" for message in request.messages):
            return "That is all I found."
        return tuple(ToolUse(f"u-{number}", each, {"place": "x"}) for number, each in enumerate(tool_ids))

    return answer


def refused(_: PromptRequest) -> Any:
    raise ProviderError("scripted", "bad_request", "no")


def raising(_: PromptRequest) -> Any:
    raise RuntimeError("a bug of the provider")


async def never(_: PromptRequest) -> Any:
    await anyio.sleep_forever()


async def whole(supervisor: HO2Supervisor, session_id: str) -> None:
    await supervisor.handle_turn("look around", session_id=session_id)


async def streamed(supervisor: HO2Supervisor, session_id: str) -> None:
    updates = [each async for each in supervisor.stream_turn("look around", session_id=session_id)]
    assert updates


async def left_early(supervisor: HO2Supervisor, session_id: str) -> None:
    updates = supervisor.stream_turn("look around", session_id=session_id)
    assert isinstance(updates, AsyncGenerator)
    async with aclosing(updates):
        async for _ in updates:
            break


async def given_up(supervisor: HO2Supervisor, session_id: str) -> None:
    with anyio.move_on_after(0.05):
        await supervisor.handle_turn("look around", session_id=session_id)


async def too_late(supervisor: HO2Supervisor, session_id: str) -> None:
    with suppress(TurnTimeout):
        await supervisor.handle_turn("look around", session_id=session_id)


CASES: Iterable[tuple[str, Turn, Callable[[PromptRequest], Any], dict[str, Any]]] = [
    ("whole", whole, echo, {}),
    ("whole, enforce", whole, echo, dict(ENFORCE)),
    ("streamed", streamed, echo, {}),
    ("streamed, enforce", streamed, echo, dict(ENFORCE)),
    ("left early", left_early, echo, {}),
    ("tools", whole, calling("look", "look"), {}),
    ("tools, streamed", streamed, calling("look"), {}),
    ("a failing tool", whole, calling("stumble"), {}),
    ("an unknown tool", whole, calling("nobody"), {}),
    ("a provider that refuses", whole, refused, {}),
    ("a provider that refuses, streamed", streamed, refused, {}),
    ("a provider with a bug", whole, raising, {}),
    ("a provider with a bug, streamed", streamed, raising, {}),
    ("a caller that gives up", given_up, never, {}),
    ("a deadline", too_late, never, {"turn_deadline_s": 0.05}),
]


@pytest.mark.parametrize(("turn", "model", "config"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
async def test_a_turn_leaves_nothing_to_the_collector(
    tmp_path: Path, turn: Turn, model: Callable[[PromptRequest], Any], config: dict[str, Any]
) -> None:
    provider = ScriptedProvider(model, record=False)
    async with open_scripted(tmp_path, provider, tools=[look, stumble], **config) as runtime:
        supervisor = runtime.supervisor()
        session_id = await supervisor.start_session(subject_id="ada")
        assert await left_in_cycles(lambda: turn(supervisor, session_id)) == Counter()
