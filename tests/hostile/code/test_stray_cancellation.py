"""A cancellation that nobody asked for is a failure of whoever it hit; one that the caller asked for still cancels.

On asyncio, who awaits a task that somebody else cancels gets the exception of a cancelled caller. Regression: it ended the
worker that ran the tool or the provider, the worker's task group took that for its own end, and the runtime closed in silence.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener import tool
from kitchener.actors.tools.tool import Tool
from kitchener.config import ProviderConfig, RouterConfig
from kitchener.errors import ActorStopped, KitchenerError
from kitchener.records import events
from kitchener.records.prompt import PromptRequest, PromptResponse
from kitchener.runtime import Runtime, open_runtime
from kitchener.testing import ScriptedProvider, use_tool
from tests.acceptance.stack import ScriptedExecutor, echo, open_by_hand, open_scripted, read_all, scripted_config
from tests.actors.time_control import settle
from tests.hostile.code.strays import Stray, of_its_own_task, on_asyncio, with_strays
from tests.hostile.kit import BYSTANDER, bystander, streamed_turn, unless_bystander
from tests.shared.payloads import payload_of

FEW = {"max_restarts": 1}
"""Limits under which the first unexpected error stops the runtime."""


def tool_first(request: PromptRequest) -> Any:
    return use_tool("wait") if request.wo_type == "synthesize" and request.call == 1 else echo(request)


@with_strays
async def test_a_tool_that_awaits_something_cancelled_has_failed_and_nothing_else_has(tmp_path: Path, stray: Stray) -> None:
    @tool
    async def wait() -> str:
        """Waits for something."""
        await stray()
        return "done"

    provider = ScriptedProvider(unless_bystander(tool_first))
    async with open_scripted(tmp_path, provider, tools=[wait], limits=FEW) as runtime, bystander(runtime):
        with anyio.fail_after(20):
            for number in range(3):
                result = await runtime.supervisor().handle_turn(f"attack {number}", subject_id="mallory")
                assert result.response == f"echo: attack {number}"
                result = await streamed_turn(runtime, f"attack {number}", subject_id="mallory")
                assert result.response == f"echo: attack {number}"
        calls = await read_all(runtime.ledgers().ho1m, entry_type=events.TOOL_CALL)
    assert len(calls) == 6
    assert {payload_of(call)["error"].partition(":")[2] for call in calls} == {
        " something that the tool waited for was cancelled"
    }


@on_asyncio
async def test_a_tool_that_cancels_its_own_task_has_failed(tmp_path: Path) -> None:
    @tool
    async def wait() -> str:
        """Cancels the task that runs it."""
        await of_its_own_task()
        return "done"

    provider = ScriptedProvider(unless_bystander(tool_first))
    async with open_scripted(tmp_path, provider, tools=[wait], limits=FEW) as runtime, bystander(runtime):
        for number in range(3):
            with anyio.fail_after(10):
                result = await runtime.supervisor().handle_turn(f"attack {number}", subject_id="mallory")
            assert result.response == f"echo: attack {number}"


@pytest.mark.parametrize("what", ["CancelledError", "Cancelled"])
async def test_a_tool_in_a_thread_that_raises_a_cancellation_has_failed(tmp_path: Path, what: str) -> None:
    if what == "Cancelled":
        import trio

        raised: BaseException = trio.Cancelled._create(source="explicit")
    else:
        raised = asyncio.CancelledError()

    def wait() -> str:
        """Raises what event loops raise."""
        raise raised

    provider, given = ScriptedProvider(unless_bystander(tool_first)), Tool(wait)
    async with open_scripted(tmp_path, provider, tools=[given], limits=FEW) as runtime, bystander(runtime):
        for number in range(2):
            with anyio.fail_after(10):
                result = await runtime.supervisor().handle_turn(f"attack {number}", subject_id="mallory")
            assert result.response == f"echo: attack {number}"


class Waiting:
    """A provider that waits for something which is cancelled, except for the bystander."""

    def __init__(self, stray: Stray, *, streams: bool) -> None:
        self._stray = stray
        if streams:
            self.stream = self._stream

    async def complete(self, request: PromptRequest) -> PromptResponse:
        if request.subject_id != BYSTANDER:
            await self._stray()
        return await ScriptedProvider([echo(request)]).complete(request)

    async def _stream(self, request: PromptRequest) -> AsyncIterator[Any]:
        yield await self.complete(request)


@pytest.mark.parametrize("streams", [False, True])
@with_strays
async def test_a_provider_that_awaits_something_cancelled_has_failed_and_nothing_else_has(
    tmp_path: Path, stray: Stray, *, streams: bool
) -> None:
    # The breaker is left out of it: a broken connection is nobody's words.
    settings = ProviderConfig(kind="offline", max_retries=0, breaker_failures=1_000)
    router = RouterConfig(default_provider="waiting", providers={"waiting": settings})
    config = scripted_config(tmp_path, limits=FEW).model_copy(update={"router": router})
    providers: Any = {"waiting": Waiting(stray, streams=streams)}
    async with open_runtime(config, providers=providers) as runtime, bystander(runtime):
        for number in range(2):
            with anyio.fail_after(10):
                for turn in (runtime.supervisor().handle_turn, partial(streamed_turn, runtime)):
                    result = await turn(f"attack {number}", subject_id="mallory")
                    assert result.error is not None
                    assert result.error.kind == "PROVIDER"
                    assert "connection: something that the provider waited for was cancelled" in result.error.message


@with_strays
async def test_an_executor_of_the_programs_own_that_is_cut_off_costs_one_turn(tmp_path: Path, stray: Stray) -> None:
    async def script(wo: Any) -> Mapping[str, Any]:
        await stray()
        return {}

    async with open_by_hand(tmp_path, ScriptedExecutor(script)) as stack:
        for _ in range(3):
            result = await stack.turn("hello")
            assert result.error is not None
            assert result.error.kind == "EXECUTOR"


@with_strays
async def test_a_reply_without_executor_that_is_cut_off_is_an_apology(tmp_path: Path, stray: Stray) -> None:
    async def degraded(message: str, **_: Any) -> str:
        await stray()
        return "never"

    executor = ScriptedExecutor(lambda wo: RuntimeError("broken"))
    async with open_by_hand(tmp_path, executor, degraded_call=degraded) as stack:
        assert (await stack.turn("hello")).response.startswith("I could not produce a reply")


async def test_a_tool_whose_caller_is_cancelled_is_cancelled(tmp_path: Path) -> None:
    """What is told from a stray cancellation is the real one: it ends the tool and the turn, not with an error text."""
    begun, ended = anyio.Event(), anyio.Event()

    @tool
    async def wait() -> str:
        """Waits for ever."""
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        return "never"

    def answer(request: PromptRequest) -> Any:
        return tool_first(request) if request.variables["user_message"] == "attack" else echo(request)

    provider = ScriptedProvider(unless_bystander(answer))
    async with open_scripted(tmp_path, provider, tools=[wait]) as runtime, bystander(runtime):
        session_id = await runtime.supervisor().start_session(subject_id="mallory")
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(runtime.supervisor().handle_turn, "attack", session_id=session_id))
                await begun.wait()
                tasks.cancel_scope.cancel()
            await ended.wait()
        entries = await read_all(runtime.ledgers().ho2m, session_id=session_id)
        tool_calls = await read_all(runtime.ledgers().ho1m, session_id=session_id, entry_type=events.TOOL_CALL)
        assert [entry.entry_type for entry in entries][-1] == events.TURN_ABORTED
        assert tool_calls == []
        again = await runtime.supervisor().handle_turn("hello", session_id=session_id)
        assert again.response == "echo: hello"


@on_asyncio
@pytest.mark.parametrize("how", ["cancel", "timeout"])
@pytest.mark.parametrize("by_hand", [False, True])
async def test_a_caller_whose_task_is_cancelled_natively_is_cancelled(tmp_path: Path, how: str, *, by_hand: bool) -> None:
    """As web servers on asyncio do it; by hand, executor and tool run in the caller's own task."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def forever(wo: Any) -> Mapping[str, Any]:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        raise AssertionError

    async def answer(request: PromptRequest) -> Any:
        return await forever(request)

    async def cancel(supervisor: Any) -> None:
        session_id, limit = await supervisor.start_session(subject_id="ada"), asyncio.timeout(None)

        async def call() -> None:
            async with limit:
                await supervisor.handle_turn("hello", session_id=session_id)

        task = asyncio.ensure_future(call())
        await begun.wait()
        if how == "timeout":  # what `asyncio.wait_for` is made of
            limit.reschedule(asyncio.get_running_loop().time())
            with pytest.raises(TimeoutError):
                await task
        else:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert ended.is_set()

    with anyio.fail_after(10):
        if by_hand:
            async with open_by_hand(tmp_path, ScriptedExecutor(forever)) as stack:
                await cancel(stack.supervisor)
                assert (await stack.types())[-1] == events.TURN_ABORTED
        else:
            async with open_scripted(tmp_path, ScriptedProvider(answer)) as runtime:
                await cancel(runtime.supervisor())
                entries = await read_all(runtime.ledgers().ho2m)
                assert entries[-1].entry_type == events.TURN_ABORTED


@on_asyncio
@pytest.mark.parametrize("name", ["ledgers of ADMIN", "the runtime", "the watch over "])
async def test_a_task_of_the_runtime_that_something_cancels_is_an_error_and_nobody_waits_for_ever(
    tmp_path: Path, name: str
) -> None:
    """A tool can reach every task of its event loop; the runtime cannot go on without some of its own, and says so."""

    @tool
    async def wait() -> str:
        """Cancels a task of the runtime."""
        for task in asyncio.all_tasks():
            if task.get_name().startswith(name):
                task.cancel()
        await anyio.sleep_forever()
        return "never"

    outcomes: list[Any] = []

    async def talk(runtime: Runtime) -> None:
        try:
            while True:
                outcomes.append(await runtime.supervisor().handle_turn("attack", subject_id="mallory"))
        except KitchenerError as error:
            outcomes.append(error)

    async def program() -> None:
        async with open_scripted(tmp_path, ScriptedProvider(tool_first), tools=[wait]) as runtime:
            await talk(runtime)

    with anyio.fail_after(20), pytest.raises(ActorStopped, match="was cancelled by something other than the runtime"):
        await program()


@on_asyncio
@pytest.mark.parametrize("when", ["before the message", "as it comes"])
async def test_workers_that_something_cancels_while_they_idle_take_no_message_with_them(tmp_path: Path, when: str) -> None:
    """The next message must not be given to a worker that has gone."""
    async with open_scripted(tmp_path, ScriptedProvider(echo)) as runtime:
        supervisor = runtime.supervisor()
        await supervisor.handle_turn("hello")
        await settle()
        idle = [each for each in asyncio.all_tasks() if each.get_name().endswith(" worker")]
        assert idle
        for task in idle:
            task.cancel()
        if when == "before the message":
            await settle()
        with anyio.fail_after(10):
            result = await supervisor.handle_turn("are you there?")
        assert (result.response, result.error) == ("echo: are you there?", None)
