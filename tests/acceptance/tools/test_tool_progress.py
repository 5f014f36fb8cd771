"""A running tool reports its progress to listeners of the turn (docs/tools.md)."""

import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener import ToolContext, ToolProgress, tool
from kitchener.records import events
from kitchener.records.prompt import ToolUse
from kitchener.records.turn import ToolRan, ToolStarted, TurnUpdate
from kitchener.replaying import replay_session
from kitchener.runtime import Runtime
from kitchener.testing import ScriptedProvider
from tests.acceptance.conftest import OpenRuntime
from tests.acceptance.stack import QUESTION, read_all, scripted_config


def calling(tool_id: str, **arguments: object) -> ScriptedProvider:
    """A model that calls a tool once, and then repeats what it was told."""

    def answer(request: Any) -> Any:
        if request.wo_type == "classify":
            return QUESTION
        last = request.messages[-1]
        return last.content if last.role == "tool" else ToolUse("u1", tool_id, arguments)

    return ScriptedProvider(answer)


async def watched(runtime: Runtime) -> list[TurnUpdate]:
    return [each async for each in runtime.supervisor().stream_turn("go")]


def progress_of(updates: list[TurnUpdate]) -> list[tuple[float | None, float | None, str | None]]:
    return [(each.value, each.total, each.message) for each in updates if isinstance(each, ToolProgress)]


def ran(updates: list[TurnUpdate]) -> ToolRan:
    return next(each for each in updates if isinstance(each, ToolRan))


@tool(read_only=True)
async def copy(context: ToolContext) -> str:
    """Copies."""
    for done in range(3):
        await context.progress(done, 3, f"file {done}")
    return "copied"


@tool(read_only=True)
def copy_in_a_thread(context: ToolContext) -> str:
    """Copies."""
    context.progress(1, 2)
    context.progress(2, 2, message="nearly")
    return f"copied in {threading.current_thread().name}"


@tool(read_only=True)
async def count(to: int) -> AsyncGenerator[int | str | list[int], None]:
    """Counts."""
    for number in range(to):
        yield number
    yield "adding up"
    yield list(range(to))


async def test_an_async_tool_tells_its_progress_between_its_start_and_its_end(scripted: OpenRuntime) -> None:
    async with scripted(calling("copy"), tools=[copy]) as runtime:
        updates = await watched(runtime)
    about = [each for each in updates if isinstance(each, ToolStarted | ToolProgress | ToolRan)]
    assert [type(each) for each in about] == [ToolStarted, ToolProgress, ToolProgress, ToolProgress, ToolRan]
    assert progress_of(updates) == [(0, 3, "file 0"), (1, 3, "file 1"), (2, 3, "file 2")]
    assert {(each.wo_id, each.call, each.tool_id) for each in about} == {(about[0].wo_id, 1, "copy")}
    assert ran(updates).result == "copied"


async def test_a_tool_in_a_thread_tells_it_by_the_same_method(scripted: OpenRuntime) -> None:
    async with scripted(calling("copy_in_a_thread"), tools=[copy_in_a_thread]) as runtime:
        updates = await watched(runtime)
    assert progress_of(updates) == [(1, 2, None), (2, 2, "nearly")]
    assert ran(updates).result == "copied in tool 'copy_in_a_thread'"


async def test_progress_is_not_on_record_and_nobody_has_to_watch(tmp_path: Path, scripted: OpenRuntime) -> None:
    async with scripted(calling("copy"), tools=[copy]) as runtime:
        result = await runtime.supervisor().handle_turn("go")
        found = await read_all(runtime.ledgers().ho1m, entry_type=(events.TOOL_STARTED, events.TOOL_CALL))
    assert result.response == "copied"
    assert "file" not in str([entry.payload for entry in found])
    report = await replay_session(result.session_id, config=scripted_config(tmp_path), tools=[copy])
    assert report.is_identical, report.text()


async def test_what_an_async_generator_yields_is_progress_and_its_last_value_the_result(
    tmp_path: Path, scripted: OpenRuntime
) -> None:
    async with scripted(calling("count", to=3), tools=[count]) as runtime:
        updates = await watched(runtime)
    assert progress_of(updates) == [(0, None, None), (1, None, None), (2, None, None), (None, None, "adding up")]
    assert ran(updates).result == [0, 1, 2]
    assert count.parameters["required"] == ["to"]


async def test_a_generator_without_a_value_has_no_result_and_its_failure_is_told(scripted: OpenRuntime) -> None:
    @tool(read_only=True)
    async def broken(at_once: bool) -> AsyncGenerator[int, None]:
        """Breaks."""
        if at_once:
            return
        yield 1
        raise ValueError("broken off")

    for at_once, end in ((True, (None, None)), (False, (None, "ValueError: broken off"))):
        async with scripted(calling("broken", at_once=at_once), tools=[broken]) as runtime:
            updates = await watched(runtime)
        assert (ran(updates).result, ran(updates).error) == end


async def test_a_cancelled_turn_closes_the_generator(scripted: OpenRuntime) -> None:
    begun, closed = anyio.Event(), anyio.Event()

    @tool(read_only=True)
    async def endless() -> AsyncGenerator[str, None]:
        """Goes on."""
        try:
            while True:
                begun.set()
                yield "on"
        finally:
            closed.set()

    with anyio.fail_after(10):
        async with scripted(calling("endless"), tools=[endless]) as runtime:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(runtime.supervisor().handle_turn, "go")
                await begun.wait()
                tasks.cancel_scope.cancel()
            assert closed.is_set()


async def test_a_slow_reader_slows_no_tool_and_misses_only_old_progress(scripted: OpenRuntime) -> None:
    """The tool reports far more than is held while the reader reads nothing, and ends all the same."""
    reported = anyio.Event()

    @tool(read_only=True)
    async def rush(context: ToolContext) -> str:
        """Rushes."""
        for done in range(5_000):
            await context.progress(done)
        reported.set()
        return "done"

    with anyio.fail_after(30):
        async with scripted(calling("rush"), tools=[rush], limits={"stream_buffer": 4}) as runtime:
            values = list[float | None]()
            async for update in runtime.supervisor().stream_turn("go"):
                if isinstance(update, ToolStarted):
                    await reported.wait()
                if isinstance(update, ToolProgress):
                    values.append(update.value)
    assert values[-1] == 4_999
    assert len(values) < 100
    assert values == sorted(values)  # type: ignore[type-var]  # all are numbers


async def test_what_a_thread_that_was_left_behind_reports_goes_nowhere(scripted: OpenRuntime) -> None:
    go_on, gone = threading.Event(), threading.Event()

    @tool(read_only=True, timeout_s=0.05)
    def late(context: ToolContext) -> str:
        """Is late."""
        go_on.wait(10)
        context.progress(1, message="too late")
        gone.set()
        return "late"

    async with scripted(calling("late"), tools=[late]) as runtime:
        updates = await watched(runtime)
        go_on.set()
        await anyio.to_thread.run_sync(gone.wait, 10)
        assert gone.is_set()
    assert progress_of(updates) == []
    assert "did not end within its time limit" in str(ran(updates).error)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"value": "half"}, "progress: value = 'half': expected a finite number"),
        ({"value": float("nan")}, "progress: value = nan: expected a finite number"),
        ({"total": True}, "progress: total = True: expected a finite number"),
        ({"message": b"x"}, "progress: message = b'x': expected text"),
    ],
)
async def test_wrong_progress_is_an_error_of_the_tool(scripted: OpenRuntime, given: dict[str, Any], problem: str) -> None:
    @tool(read_only=True)
    async def wrong(context: ToolContext) -> None:
        """Reports wrongly."""
        await context.progress(**given)

    async with scripted(calling("wrong"), tools=[wrong]) as runtime:
        assert ran(await watched(runtime)).error == f"ToolError: {problem}"


async def test_a_long_message_is_cut(scripted: OpenRuntime) -> None:
    @tool(read_only=True)
    async def talk(context: ToolContext) -> None:
        """Talks."""
        await context.progress(message="x" * 100_000)

    async with scripted(calling("talk"), tools=[talk]) as runtime:
        ((_, _, message),) = progress_of(await watched(runtime))
    assert message == "x" * 500
