"""Tools that send messages themselves: never into a turn that waits for them, never beyond the depth, never for ever."""

from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from kitchener import tool
from kitchener.actors.tools.tool import Tool
from kitchener.errors import Overloaded, ReentrantTurn
from kitchener.records import events
from kitchener.records.prompt import PromptRequest
from kitchener.records.tools.tool_context import ToolContext
from kitchener.records.turn import TurnCompleted, TurnResult
from kitchener.runtime import Runtime
from kitchener.testing import ScriptedProvider
from tests.acceptance.conftest import OpenRuntime
from tests.acceptance.stack import QUESTION, echo, outcome, read_all, types_of


def passing_on(request: PromptRequest) -> Mapping[str, Any]:
    """A model for which `go…` is the command to pass the rest of the message on, and all else a question."""
    message = request.variables["user_message"]
    if request.wo_type == "classify" and message.startswith("go"):
        ask = {"tool_id": "pass_on", "arguments": {"message": message.removeprefix("go").strip()}}
        return {**QUESTION, "speech_act": "command", "tool_request": ask}
    return echo(request)


class Relay:
    """A tool that sends what it is given to another session, and keeps what that came to."""

    def __init__(self) -> None:
        self.runtime: Runtime
        self.to: dict[str, str] = {}
        """Where a session's tool sends its message; "" starts a new one."""
        self.options: dict[str, Any] = {}
        self.streams = False
        self.came_to: list[TurnResult | Exception] = []
        self.is_together = False
        """Whether the tool waits until it runs in every session of `to`."""
        self._begun, self._all_begun = 0, anyio.Event()

        @tool(read_only=True)
        async def pass_on(message: str, call: ToolContext) -> str:
            """Passes a message on."""
            self._begun += 1
            if self._begun == len(self.to):
                self._all_begun.set()
            if self.is_together:
                await self._all_begun.wait()
            result = await outcome(self._send(message, self.to.get(call.session_id) or None))
            self.came_to.append(result)
            return result.response if isinstance(result, TurnResult) else type(result).__name__

        self.tool: Tool[..., Any] = pass_on

    async def _send(self, message: str, session_id: str | None) -> TurnResult:
        supervisor, message = self.runtime.supervisor(), message or "end"
        if not self.streams:
            return await supervisor.handle_turn(message, session_id=session_id, **self.options)
        updates = [update async for update in supervisor.stream_turn(message, session_id=session_id, **self.options)]
        assert isinstance(updates[-1], TurnCompleted)
        return updates[-1].result


@pytest.mark.parametrize("streams", [False, True])
async def test_a_tool_cannot_call_back_into_its_own_session(scripted: OpenRuntime, streams: bool) -> None:
    """ReentrantTurn at once, also through a stream; the turn itself goes on."""
    relay = Relay()
    async with scripted(ScriptedProvider(passing_on), tools=[relay.tool]) as runtime:
        relay.runtime, relay.streams = runtime, streams
        session_id = await runtime.supervisor().start_session()
        relay.to[session_id] = session_id
        with anyio.fail_after(10):
            result = await runtime.supervisor().handle_turn("go go", session_id=session_id)
        types = types_of(await read_all(runtime.ledgers().ho2m))
    assert [type(each) for each in relay.came_to] == [ReentrantTurn]
    assert (result.response, result.error) == ("echo: go go", None)
    assert (types.count(events.TURN_STARTED), types.count(events.TURN_REJECTED)) == (1, 0)


async def test_a_tool_cannot_join_its_own_turn_by_key(scripted: OpenRuntime) -> None:
    """The same message with the same key, sent by the turn's own tool, must not wait for the turn that waits for the tool."""
    relay = Relay()
    provider = ScriptedProvider(
        lambda request: (
            {**QUESTION, "speech_act": "command", "tool_request": {"tool_id": "pass_on", "arguments": {"message": "x"}}}
            if request.wo_type == "classify"
            else echo(request)
        )
    )
    async with scripted(provider, tools=[relay.tool], tool_timeout_s=1_000) as runtime:
        relay.runtime = runtime
        session_id = await runtime.supervisor().start_session()
        relay.to[session_id], relay.options = session_id, {"idempotency_key": "k1"}
        with anyio.fail_after(10):
            result = await runtime.supervisor().handle_turn("x", session_id=session_id, idempotency_key="k1")
    assert result.error is None
    assert [type(each) for each in relay.came_to] == [ReentrantTurn]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_tool_may_send_to_another_session_even_when_every_slot_is_taken(scripted: OpenRuntime, streams: bool) -> None:
    """One turn, one work order at a time: the nested turn has a lane of its own and waits for no slot that waits for it."""
    relay = Relay()
    limits = {"max_running_turns": 1, "executor_concurrency": 1}
    async with scripted(ScriptedProvider(passing_on), tools=[relay.tool], limits=limits) as runtime:
        relay.runtime, relay.streams = runtime, streams
        with anyio.fail_after(10):
            result = await runtime.supervisor().handle_turn("go go hello")
        (inner, outer) = relay.came_to
        assert isinstance(inner, TurnResult)
        assert isinstance(outer, TurnResult)
        assert inner.response == "echo: hello"
        assert len({inner.session_id, outer.session_id, result.session_id}) == 3


async def test_turns_nest_only_so_deep(scripted: OpenRuntime) -> None:
    """Beyond `max_nesting` the innermost call is refused; those around it complete."""
    relay = Relay()
    async with scripted(ScriptedProvider(passing_on), tools=[relay.tool], limits={"max_nesting": 2}) as runtime:
        relay.runtime = runtime
        with anyio.fail_after(10):
            result = await runtime.supervisor().handle_turn("go go go go")
        types = types_of(await read_all(runtime.ledgers().ho2m))
    assert [type(each) for each in relay.came_to] == [ReentrantTurn, TurnResult, TurnResult]
    assert "max_nesting = 2" in str(relay.came_to[0])
    assert result.error is None
    assert types.count(events.TURN_COMPLETED) == 3


async def test_crossed_pairs_end_at_the_admission_deadline(scripted: OpenRuntime) -> None:
    """Two sessions whose tools send to each other wait for each other, but not for ever; both go on afterwards."""
    relay = Relay()
    async with scripted(ScriptedProvider(passing_on), tools=[relay.tool], admission_deadline_s=0.05) as runtime:
        relay.runtime = runtime
        one, two = [await runtime.supervisor().start_session() for _ in range(2)]
        relay.to, relay.is_together = {one: two, two: one}, True
        results: list[TurnResult] = []

        async def send(session_id: str) -> None:
            results.append(await runtime.supervisor().handle_turn("go hello", session_id=session_id))

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send, one)
                tasks.start_soon(send, two)
            assert [result.error for result in results] == [None, None]
            assert any(isinstance(each, Overloaded) for each in relay.came_to)
            for session_id in (one, two):
                assert (await runtime.supervisor().handle_turn("hello", session_id=session_id)).error is None
