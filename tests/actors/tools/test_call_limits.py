"""Limits of single tools: calls that run at a time, calls that start in a minute, size of results. See docs/tools.md."""

from typing import Any

import anyio
import pytest

from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.tools.results import ToolOutcome
from kitchener.actors.tools.tool import Tool, tool
from kitchener.config import ToolLimits
from kitchener.errors import ToolError
from tests.actors.time_control import in_virtual_time
from tests.shared.tool_calls import a_call


class Work:
    """A tool that takes a second, and says when its calls began and how many ran at a time."""

    def __init__(self, **limits: Any) -> None:
        self.began: list[float] = []
        self.running = self.most = 0
        self._zero: float | None = None

        @tool(read_only=True, **limits)
        async def work(seconds: float = 1.0) -> str:
            """Works."""
            now = anyio.current_time()
            self._zero = now if self._zero is None else self._zero
            self.began.append(round(now - self._zero))
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await anyio.sleep(seconds)
            finally:
                self.running -= 1
            return "x" * 1_000

        self.tool: Tool[..., Any] = work

    async def run(self, registry: ToolRegistry, times: int, **arguments: Any) -> list[ToolOutcome]:
        found = list[ToolOutcome]()

        async def one() -> None:
            found.append(await registry.run("work", arguments, a_call()))

        async with anyio.create_task_group() as tasks:
            for _ in range(times):
                tasks.start_soon(one)
        return found


def errors(found: list[ToolOutcome]) -> list[str]:
    return [each.error for each in found if each.error is not None]


@in_virtual_time
async def test_calls_beyond_the_concurrency_wait_for_their_turn() -> None:
    work = Work(concurrency=2)
    found = await work.run(ToolRegistry([work.tool]), 5)
    assert errors(found) == []
    assert work.most == 2
    assert work.began == [0, 0, 1, 1, 2]


@in_virtual_time
async def test_waiting_for_a_place_counts_against_the_time_limit() -> None:
    work = Work(concurrency=1, timeout_s=5)
    found = await work.run(ToolRegistry([work.tool]), 2, seconds=60)
    assert len(work.began) == 1
    assert sorted(each[:60] for each in errors(found)) == [
        "tool 'work' did not end within its time limit of 5 s or the turn's d"[:60],
        "tool 'work' was not started: 1 calls of it ran all the time within its"[:60],
    ]
    assert any(each.endswith("Call it again later, or go on without it.") for each in errors(found))
    assert work.running == 0


@in_virtual_time
async def test_a_place_is_free_again_after_a_call_that_was_cut_off_or_cancelled() -> None:
    work = Work(concurrency=1, timeout_s=5)
    registry = ToolRegistry([work.tool])
    await work.run(registry, 1, seconds=60)
    with anyio.move_on_after(2):
        await work.run(registry, 1, seconds=60)
    assert errors(await work.run(registry, 1)) == []


@in_virtual_time
async def test_calls_beyond_the_rate_wait_where_their_time_limit_allows_it() -> None:
    work = Work(rate_per_minute=2, timeout_s=100)
    registry = ToolRegistry([work.tool])
    assert errors(await work.run(registry, 4)) == []
    assert work.began == [0, 0, 60, 60]


@in_virtual_time
async def test_a_call_that_would_wait_too_long_is_refused_at_once_and_told_when_it_may_come_back() -> None:
    work = Work(rate_per_minute=1, timeout_s=30)
    registry = ToolRegistry([work.tool])
    await work.run(registry, 1)
    before = anyio.current_time()
    (told,) = errors(await work.run(registry, 1))
    assert anyio.current_time() == before
    assert told == (
        "tool 'work' was not started: it may start 1 times a minute, next in 59 s. Call it again later, or go on without it."
    )
    await anyio.sleep(59)
    assert errors(await work.run(registry, 1)) == []


@in_virtual_time
async def test_a_setting_overrides_what_the_author_set_by_name_or_pattern_and_the_first_counts() -> None:
    work = Work(concurrency=1, max_result_bytes=2_000)
    rules = {"wo*": ToolLimits(concurrency=3, timeout_s=7.0), "*": ToolLimits(concurrency=1)}
    registry = ToolRegistry([work.tool], limits=rules)
    found = await work.run(registry, 4)
    assert work.most == 3
    assert {len(each.result) for each in found} == {1_000}  # the author's limit of bytes holds, as the setting has none
    (told,) = errors(await work.run(registry, 1, seconds=60))
    assert "time limit of 7 s" in told


@in_virtual_time
async def test_a_result_is_cut_to_the_tools_own_limit() -> None:
    work = Work(max_result_bytes=200)
    (found,) = await work.run(ToolRegistry([work.tool], max_result_bytes=500), 1)
    assert "the limit is 200" in str(found.result)
    other = Work()
    (found,) = await other.run(ToolRegistry([other.tool], max_result_bytes=500), 1)
    assert "the limit is 500" in str(found.result)


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"concurrency": 0}, "tool 'work': concurrency = 0: Input should be greater than or equal to 1"),
        ({"rate_per_minute": 1.5}, "tool 'work': rate_per_minute = 1.5: Input should be a valid integer"),
        ({"max_result_bytes": "1k"}, "tool 'work': max_result_bytes = '1k': Input should be a valid integer"),
        ({"speed": 1}, "tool 'work': speed = 1: Extra inputs are not permitted"),
    ],
)
def test_a_wrong_limit_is_refused_when_the_tool_is_declared(limits: dict[str, Any], problem: str) -> None:
    with pytest.raises(ToolError) as refused:
        Work(**limits)
    assert str(refused.value) == problem
