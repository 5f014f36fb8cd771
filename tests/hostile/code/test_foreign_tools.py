"""What a tool does to its task, its context variables, its arguments or its result is felt by nobody else.

A tool is somebody else's code, and one process runs it for all subjects. Each story runs a tool that is careless or hostile.
"""

import itertools
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup

from kitchener import replay_session
from kitchener.actors.tools.tool import Tool, tool
from kitchener.errors import RuntimeClosed, TurnTimeout
from kitchener.records import events
from kitchener.records.prompt import PromptRequest
from kitchener.records.tools.tool_context import ToolContext
from kitchener.runtime import Runtime
from kitchener.testing import ScriptedProvider, use_tool
from tests.acceptance.stack import Hold, echo, open_scripted, read_all, scripted_config
from tests.hostile.kit import bystander, unless_bystander
from tests.shared.logs import captured_logs
from tests.shared.sampled_tables import sampled

FEW = {"max_restarts": 1}
"""Limits under which the first unexpected error stops the runtime."""
SUBJECTS = ("ada", "mallory", "eve")
USER: ContextVar[str] = ContextVar("USER", default="nobody")
"""Such as a web framework keeps the user of a request in."""


def asks(tool_id: str, **arguments: Any) -> ScriptedProvider:
    """A model that asks for the tool once in each turn of all but the bystander."""

    def answer(request: PromptRequest) -> Any:
        return use_tool(tool_id, **arguments) if request.wo_type == "synthesize" and request.call == 1 else echo(request)

    return ScriptedProvider(unless_bystander(answer))


async def told(runtime: Runtime) -> list[Mapping[str, Any]]:
    """What each tool call gave."""
    return [entry.payload for entry in await read_all(runtime.ledgers().ho1m, entry_type=events.TOOL_CALL)]


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("streams", [True, False])
async def test_a_tool_has_the_context_variables_of_its_own_caller(tmp_path: Path, *, is_async: bool, streams: bool) -> None:
    """Regression: a worker kept those of whoever had called it first, so a tool acted for another user."""

    async def who() -> str:
        """Says who asks."""
        return USER.get()

    def who_too() -> str:
        """Says who asks."""
        return USER.get()

    async def ask(subject_id: str) -> None:
        USER.set(subject_id)
        if streams:
            async for _ in runtime.supervisor().stream_turn("who am I?", subject_id=subject_id):
                pass
        else:
            await runtime.supervisor().handle_turn("who am I?", subject_id=subject_id)

    given = Tool(who if is_async else who_too, name="who", read_only=True)
    async with open_scripted(tmp_path, asks("who"), tools=[given]) as runtime, bystander(runtime):
        for subject_id in SUBJECTS:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, subject_id)
        calls = await told(runtime)
    assert [(call["subject_id"], call["result"]) for call in calls] == [(each, each) for each in SUBJECTS]


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_tool_leaves_no_context_variable_behind(tmp_path: Path, *, is_async: bool) -> None:
    async def note(call: ToolContext) -> str:
        """Says who was here before."""
        before = USER.get()
        USER.set(call.subject_id)
        return before

    def note_too(call: ToolContext) -> str:
        """Says who was here before."""
        before = USER.get()
        USER.set(call.subject_id)
        return before

    given = Tool(note if is_async else note_too, name="note", read_only=True)
    async with open_scripted(tmp_path, asks("note"), tools=[given]) as runtime:
        for subject_id in SUBJECTS:
            await runtime.supervisor().handle_turn("hello", subject_id=subject_id)
        assert [call["result"] for call in await told(runtime)] == ["nobody"] * len(SUBJECTS)


async def enters_a_scope() -> str:
    """Enters a cancel scope and never leaves it."""
    anyio.CancelScope().__enter__()
    return "done"


async def enters_a_cancelled_scope() -> str:
    """Enters a cancel scope, cancels it and never leaves it."""
    anyio.move_on_after(0).__enter__()
    return "done"


async def enters_a_task_group() -> str:
    """Enters a task group and never leaves it, as with a client that is opened once and kept."""
    await anyio.create_task_group().__aenter__()
    return "done"


LEFT: tuple[Callable[[], Awaitable[str]], ...] = (enters_a_scope, enters_a_cancelled_scope, enters_a_task_group)


@pytest.mark.parametrize("leaves", LEFT)
async def test_what_a_tool_never_leaves_ends_with_its_task(tmp_path: Path, leaves: Callable[[], Awaitable[str]]) -> None:
    """Regression: one such call stopped the executor, and with it everybody."""
    given = Tool(leaves, name="leaves", read_only=True)
    async with open_scripted(tmp_path, asks("leaves"), tools=[given], limits=FEW) as runtime, bystander(runtime):
        for number in range(3):
            with anyio.fail_after(10):
                result = await runtime.supervisor().handle_turn(f"attack {number}", subject_id=f"mallory-{number}")
            assert result.response == f"echo: attack {number}"
        assert len(await told(runtime)) == 3


def shared(levels: int = 60) -> list[Any]:
    """A small value with a JSON form of 2^levels values: each list stands twice in the next."""
    value: list[Any] = [0]
    for _ in range(levels):
        value = [value, value]
    return value


ENDLESS: Mapping[str, Callable[[], Any]] = {
    "an iterator": lambda: itertools.repeat(0),
    "an iterator inside": lambda: {"rows": [itertools.count()]},
    "lists that share their parts": shared,
    "tables that share their parts": lambda: {"a": shared(30), "b": {1: shared(30)}},
    "a long text many times": lambda: ["x" * 1_000_000] * 90_000,
    "a huge number": lambda: 10**50_000,
}


@pytest.mark.parametrize(("what", "is_async"), sampled(ENDLESS, (True, False)))
async def test_a_result_without_end_is_an_error_for_the_model(tmp_path: Path, what: str, *, is_async: bool) -> None:
    """Regression: making its JSON held the whole process, also from a thread, until its memory was used up."""

    async def gives() -> Any:
        """Gives it."""
        return ENDLESS[what]()

    def gives_too() -> Any:
        """Gives it."""
        return ENDLESS[what]()

    given = Tool(gives if is_async else gives_too, name="gives", read_only=True)
    async with open_scripted(tmp_path, asks("gives"), tools=[given], limits=FEW) as runtime, bystander(runtime):
        for number in range(2):
            result = await runtime.supervisor().handle_turn(f"attack {number}", subject_id=f"mallory-{number}")
            assert result.response == f"echo: attack {number}"
        calls = await told(runtime)
    assert all(call["error"].startswith("the tool has run, but its result") for call in calls)


async def test_what_a_tool_changes_in_its_arguments_changes_nothing_that_was_said(tmp_path: Path) -> None:
    """Regression: the model was shown the changed ones as its own words, and the session's replay differed."""

    @tool(read_only=True)
    def change(options: dict[str, Any]) -> str:
        """Changes what it is given."""
        options["items"].append("forged")
        options["more"] = True
        return "changed"

    def answer(request: PromptRequest) -> Any:
        is_first = request.wo_type == "synthesize" and request.call == 1
        return use_tool("change", options={"items": [1]}) if is_first else echo(request)

    model = ScriptedProvider(answer)
    async with open_scripted(tmp_path, model, tools=[change]) as runtime:
        session_id = await runtime.supervisor().start_session(subject_id="ada")
        await runtime.supervisor().handle_turn("hello", session_id=session_id)
    shown = [message for message in model.requests[-1].messages if message.tool_uses]
    assert [dict(use.arguments) for use in shown[0].tool_uses] == [{"options": {"items": [1]}}]
    report = await replay_session(session_id, config=scripted_config(tmp_path), tools=[change])
    assert report.is_identical, report.divergence


async def test_a_tool_may_open_a_runtime_of_its_own_and_close_it(tmp_path: Path) -> None:
    """Regression: closing it was refused, as if the tool drained the runtime that waits for it."""

    @tool(read_only=True)
    async def ask_another() -> str:
        """Asks an agent of its own."""
        async with open_scripted(tmp_path / "inner") as inner:
            return (await inner.supervisor().handle_turn("inner", subject_id="zoe")).response

    async with open_scripted(tmp_path / "outer", asks("ask_another"), tools=[ask_another]) as runtime:
        await runtime.supervisor().handle_turn("hello", subject_id="ada")
        assert [call.get("result") for call in await told(runtime)] == ["echo: inner"]


async def test_a_tool_that_shields_itself_keeps_neither_its_turn_nor_another_subject(tmp_path: Path) -> None:
    """Its time limit cannot end it, but the turn's deadline ends the turn. Closing waits for it, and says so."""
    began, let_go = anyio.Event(), anyio.Event()

    @tool(read_only=True, timeout_s=0.05)
    async def stays() -> str:
        """Stays until it is let go."""
        with anyio.CancelScope(shield=True):
            began.set()
            await let_go.wait()
        return "done"

    limits = {"abort_grace_s": 0.1, "shutdown_grace_s": 0.1}
    with captured_logs() as logs, anyio.fail_after(30):
        async with (
            anyio.create_task_group() as tasks,
            open_scripted(tmp_path, asks("stays"), tools=[stays], limits=limits) as runtime,
        ):
            async with bystander(runtime):
                with pytest.raises(TurnTimeout):
                    await runtime.supervisor().handle_turn("attack", subject_id="mallory", deadline=0.5)
                assert began.is_set()
            tasks.start_soon(let_go_when, lambda: any("tools" in each for each in logs), let_go)
    [told] = [each for each in logs if "tools" in each]
    assert (told["event"], told["tools"]) == ("tools do not end, and the runtime waits for them", ("stays",))


async def let_go_when(is_time: Callable[[], bool], event: anyio.Event) -> None:
    """Sets the event once it is time."""
    while not is_time():  # noqa: ASYNC110 - a log line sets no event
        await anyio.sleep(0.01)
    event.set()


async def test_one_subjects_tools_that_hang_leave_threads_for_others(tmp_path: Path) -> None:
    """Regression: 32 of them, such as one that reads an address which never answers, and nobody's tools were started."""
    let_go = Event()

    @tool(read_only=True, timeout_s=1)
    def hang(call: ToolContext) -> str:
        """Hangs for Mallory."""
        if call.subject_id == "mallory":
            let_go.wait(60)
        return "done"

    try:
        async with open_scripted(tmp_path, asks("hang"), tools=[hang]) as runtime:
            async with anyio.create_task_group() as tasks:
                for number in range(40):
                    tasks.start_soon(partial(runtime.supervisor().handle_turn, f"{number}", subject_id="mallory"))
            await runtime.supervisor().handle_turn("hello", subject_id="ada")
            calls = await told(runtime)
        assert [call["result"] for call in calls if call["subject_id"] == "ada"] == ["done"]
        assert sum("may still be running" in call["error"] for call in calls if call["subject_id"] == "mallory") <= 28
    finally:
        let_go.set()


class Leaves:
    """A tool that leaves a task of the program behind, which sends the message `later`.

    Args:
        tasks: where the task is left
        is_async: whether the tool is
        begins: the task sends its message while the tool runs, to another session; else once `let_go` is set, to the same one
    """

    def __init__(self, tasks: TaskGroup, *, is_async: bool = True, begins: bool = False) -> None:
        self.runtime: Runtime
        self.let_go, self.hold = anyio.Event(), Hold("later")
        self.answers: list[str] = []

        async def leave(call: ToolContext) -> str:
            """Leaves a task behind."""
            tasks.start_soon(self._later, None if begins else call.session_id)
            if begins:
                self.let_go.set()
                await self.hold.arrived["later"].wait()
            return "left"

        def leave_too(call: ToolContext) -> str:
            """Leaves a task behind."""
            return anyio.from_thread.run(leave, call)

        self.tool = Tool(leave if is_async else leave_too, name="leave", read_only=True)
        self.model = ScriptedProvider(unless_bystander(self._answer), gate=self.hold)

    async def _later(self, session_id: str | None) -> None:
        await self.let_go.wait()
        result = await self.runtime.supervisor().handle_turn("later", session_id=session_id, subject_id="mallory")
        self.answers.append(result.response)

    def _answer(self, request: PromptRequest) -> Any:
        is_first = request.wo_type == "synthesize" and request.call == 1
        return use_tool("leave") if is_first and request.variables["user_message"] != "later" else echo(request)

    async def release_when_closing(self) -> None:
        """Lets the model answer once the runtime takes no more turns."""
        with suppress(RuntimeClosed):
            while True:
                await self.runtime.supervisor().start_session(subject_id="ada")
        self.hold.released["later"].set()


@pytest.mark.parametrize("is_async", [True, False])
async def test_what_a_tool_leaves_behind_is_a_caller_of_its_own(tmp_path: Path, *, is_async: bool) -> None:
    """Regression: its later turns took no slot, and the session was closed to it for ever."""
    async with anyio.create_task_group() as tasks:
        left = Leaves(tasks, is_async=is_async)
        async with open_scripted(tmp_path, left.model, tools=[left.tool], limits=FEW) as left.runtime, bystander(left.runtime):
            session_id = await left.runtime.supervisor().start_session(subject_id="mallory")
            await left.runtime.supervisor().handle_turn("now", session_id=session_id, subject_id="mallory")
            left.let_go.set()
            left.hold.released["later"].set()
            with anyio.fail_after(10):
                while not left.answers:
                    await anyio.lowlevel.checkpoint()
    assert left.answers == ["echo: later"]


@pytest.mark.parametrize("begins", [True, False])
async def test_closing_waits_for_the_turns_of_what_a_tool_left_behind(tmp_path: Path, *, begins: bool) -> None:
    """Regression: the runtime was closed under them, also under one that had begun while the tool ran."""
    async with anyio.create_task_group() as tasks:
        left = Leaves(tasks, begins=begins)
        async with open_scripted(tmp_path, left.model, tools=[left.tool], limits=FEW) as left.runtime:
            session_id = await left.runtime.supervisor().start_session(subject_id="mallory")
            await left.runtime.supervisor().handle_turn("now", session_id=session_id, subject_id="mallory")
            left.let_go.set()
            with anyio.fail_after(10):
                await left.hold.arrived["later"].wait()
            assert left.runtime.statistics()["running_turns"] == (0 if begins else 1)
            tasks.start_soon(left.release_when_closing)
    assert left.answers == ["echo: later"]
