"""A wrong argument of a call is refused before anything begins. `tests/hostile/test_any_argument.py` tries every argument."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BeforeValidator

from kitchener import CallerError, tool
from kitchener.records import events
from kitchener.records.prompt import PromptRequest
from kitchener.testing import ScriptedProvider, use_tool
from tests.acceptance.approval.kit import Desk, model, open_desk
from tests.acceptance.stack import echo, open_scripted, read_all


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"listener": 5}, "listener = 5: expected an asynchronous function of one update"),
        ({"listener": int}, "expected an asynchronous function of one update"),
        ({"client_tools": 0}, "client_tools = 0: expected a list of ClientTool"),
        ({"client_tools": {}}, "client_tools = {}: expected a list of ClientTool"),
    ],
)
async def test_a_wrong_argument_of_a_message_starts_nothing(tmp_path: Path, arguments: Any, problem: str) -> None:
    async with open_scripted(tmp_path, ScriptedProvider(echo)) as runtime:
        with pytest.raises(CallerError, match=problem):
            await runtime.supervisor().handle_turn("hello", **arguments)
        assert await runtime.sessions() == []


async def test_the_arguments_of_a_tool_are_checked_once(tmp_path: Path) -> None:
    """A type of a program's own may be slow to check, or may check something outside, such as a file."""
    checked = list[str]()

    def check(value: Any) -> Any:
        checked.append(value)
        return value

    @tool
    def remove(path: Annotated[str, BeforeValidator(check)]) -> str:
        """Removes a file."""
        return f"removed {path}"

    def answer(request: PromptRequest) -> Any:
        return use_tool("remove", path="a.txt") if request.messages[-1].role != "tool" else {"response_text": "Done."}

    async with open_scripted(tmp_path, ScriptedProvider(answer), classify="off", tools=[remove]) as runtime:
        await runtime.supervisor().handle_turn("tidy up")
    assert checked == ["a.txt"]


async def test_a_wrong_listener_of_an_answer_answers_nothing(tmp_path: Path) -> None:
    """Regression: the answer was on record, the tool ran, and then the turn was aborted."""
    desk = Desk()
    async with open_desk(tmp_path / "root", desk, model([("delete", {"path": "a.txt"})])) as runtime:
        agent = runtime.supervisor()
        (approval_id,) = (await agent.handle_turn("tidy up", subject_id="ada")).pending_approval
        wrong: Any = 5
        answers: list[Callable[[], Awaitable[object]]] = [
            lambda: agent.approve(approval_id, listener=wrong),
            lambda: agent.deny(approval_id, listener=wrong),
        ]
        for answer in answers:
            with pytest.raises(CallerError, match="listener = 5"):
                await answer()
        assert await read_all(runtime.ledgers().ho2m, entry_type=events.APPROVAL_RESOLVED) == []
        assert desk.done == []


async def test_a_wrong_number_of_results_is_refused(tmp_path: Path) -> None:
    async with open_scripted(tmp_path, ScriptedProvider(echo)) as runtime:
        for limit in (0, -1, 1.5, True, "10", None, 10**400):
            wrong: Any = limit
            with pytest.raises(CallerError, match=r"^limit = .*: expected a whole number from 1 to 1,000,000,000,000$"):
                await runtime.sessions(limit=wrong)
            with pytest.raises(CallerError, match=r"^limit = .*: expected a whole number from 1"):
                await runtime.supervisor().find_all_external("chat-7", limit=wrong)
