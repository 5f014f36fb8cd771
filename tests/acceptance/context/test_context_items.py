"""An item shown as a stub can be read in full by the built-in tool (docs/context.md)."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from kitchener.records.prompt import PromptRequest, ToolUse
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import QUESTION, open_scripted, read_all
from tests.shared.payloads import payload_of
from tests.shared.prompts import shown_text

LONG = "the recipe begins with " + "flour and water, " * 60
STUB = re.compile(r"\[(T-[0-9a-f]+-\d+(?:\.message)?)\]")


def fetching(request: PromptRequest) -> Any:
    """A model that asks once for the first stub or excerpt that it is shown, and then says what it was told."""
    if request.wo_type == "classify":
        return QUESTION
    told = [message.content for message in request.messages if message.role == "tool"]
    if told:
        return {"response_text": f"told: {told[0]}"}
    stub = STUB.search(shown_text(request.variables["assembled_context"]))
    if stub is not None and request.tools:
        return ToolUse("use-1", "read_context_item", {"item_id": stub[1]})
    return {"response_text": f"no stub: {request.variables['user_message']}"}


async def told_after_a_long_turn(root: Path, answer: Callable[[PromptRequest], Any]) -> tuple[str, list[str]]:
    """What is said in the turn after one that is too long to be shown in full, and the ids of the tools that were called."""
    config: dict[str, Any] = {"context_mode": "enforce", "context_budget": 300, "admission": "newest_first"}
    with anyio.fail_after(30):
        async with open_scripted(root, ScriptedProvider(answer), **config) as runtime:
            supervisor = runtime.supervisor()
            session_id = await supervisor.start_session(subject_id="ada")
            await supervisor.handle_turn(LONG, session_id=session_id)
            result = await supervisor.handle_turn("and then?", session_id=session_id)
            calls = await read_all(runtime.ledgers().ho1m, entry_type="TOOL_CALL")
            return result.response, [payload_of(entry)["tool_id"] for entry in calls]


async def test_a_stub_is_read_in_full_by_its_id(tmp_path: Path) -> None:
    response, tools = await told_after_a_long_turn(tmp_path, fetching)
    assert response.startswith("told: ")
    assert "flour and water, " * 50 in response
    assert tools == ["read_context_item"]


async def test_without_stubs_no_tool_is_offered_and_none_is_listed_to_the_classifier(tmp_path: Path) -> None:
    provider = ScriptedProvider(fetching)
    with anyio.fail_after(30):
        async with open_scripted(tmp_path, provider, context_mode="enforce") as runtime:
            supervisor = runtime.supervisor()
            session_id = await supervisor.start_session(subject_id="ada")
            for message in ("one", "two"):
                result = await supervisor.handle_turn(message, session_id=session_id)
                assert result.response == f"no stub: {message}"
    assert all(not request.tools for request in provider.requests)
    assert all(request.variables["tools"] == [] for request in provider.requests if request.wo_type == "classify")


async def test_an_id_that_is_not_in_the_context_is_told_so(tmp_path: Path) -> None:
    def guessing(request: PromptRequest) -> Any:
        answer = fetching(request)
        return (
            ToolUse("use-1", "read_context_item", {"item_id": "T-ffffffff-000001"}) if isinstance(answer, ToolUse) else answer
        )

    response, _ = await told_after_a_long_turn(tmp_path, guessing)
    assert "there is no item" in response
