"""What a program hands in beside tools and providers, and connections, that fail while they are stopped: as in
`test_failures_while_stopped.py`.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import orjson
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kitchener import tool
from kitchener.actors.attention.attention_context import ContextFragment
from kitchener.actors.attention.retriever import AttentionRetriever
from kitchener.actors.attention.templates import load_templates, resolve_template
from kitchener.config import HO2Config, McpServerConfig
from kitchener.errors import TurnTimeout
from kitchener.mcp import server as mcp_server
from kitchener.mcp.connection import ToolList
from kitchener.memory import HO3Memory
from kitchener.records import events
from kitchener.records.prompt import PromptRequest
from kitchener.records.turn import TextDelta, ToolProgress, ToolStarted, TurnUpdate, WorkOrderPlanned
from kitchener.runtime.tools.connected_servers import open_servers
from kitchener.testing import ScriptedProvider, use_tool
from tests.acceptance.memory.memory_kit import EASY, QUESTIONS, open_remembering, say, student
from tests.acceptance.stack import QUICK, ScriptedExecutor, Stack, echo, fitting, open_by_hand, open_scripted, read_all
from tests.hostile.code.stopped_code import BEHAVIOURS, Behaviour, nothing_goes_wrong
from tests.hostile.code.strays import on_asyncio
from tests.serve.shared.requests import COMPLETIONS, Asked, Client, chat_body, run_request, serving

FAILING = [each for each in BEHAVIOURS if each != "no end"]
"""Without a model that is waited for, a turn that takes no notice of its cancellation may complete."""


class Armed:
    """A place where foreign code waits once, after it was armed."""

    def __init__(self) -> None:
        self._behave: Behaviour | None = None
        self.met = anyio.Event()

    def arm(self, name: str) -> None:
        self._behave, self.met = BEHAVIOURS[name], anyio.Event()

    async def meet(self) -> None:
        behave, self._behave = self._behave, None
        if behave is not None:
            self.met.set()
            await behave()


class Remembers:
    """A memory of which one method waits."""

    def __init__(self, memory: HO3Memory, method: str, armed: Armed) -> None:
        self._memory, self._method, self._armed = memory, method, armed

    def __getattr__(self, name: str) -> Any:
        return self._wait if name == self._method else getattr(self._memory, name)

    async def _wait(self, *given: Any, **named: Any) -> Any:
        await self._armed.meet()
        return await getattr(self._memory, self._method)(*given, **named)


class Reads:
    """A `ContextProvider` that waits."""

    def __init__(self, armed: Armed) -> None:
        self._armed = armed

    async def read_ledger_entries(self, session_id: str, *, limit: int) -> Sequence[ContextFragment]:
        await self._armed.meet()
        return []

    async def search_text(self, session_id: str, query: str, *, limit: int) -> Sequence[ContextFragment]:
        return []

    async def read_registry(self) -> Sequence[ContextFragment]:
        return []


@asynccontextmanager
async def remembering(root: Path, armed: Armed, method: str) -> AsyncIterator[Stack]:
    async with open_remembering(root, wrap=partial(Remembers, method=method, armed=armed)) as (stack, _):
        yield stack


def reading(root: Path, armed: Armed, **settings: Any) -> AbstractAsyncContextManager[Stack]:
    """A reader's failure costs its context, and no more."""
    attention = AttentionRetriever(Reads(armed), HO2Config(**settings), resolve_template(load_templates(), "ADMIN"))
    return open_by_hand(root, ScriptedExecutor(), attention=attention)


def executing(root: Path, armed: Armed) -> AbstractAsyncContextManager[Stack]:
    async def script(wo: Any) -> Mapping[str, Any]:
        await armed.meet()
        return fitting(wo)

    return open_by_hand(root, ScriptedExecutor(script))


def degraded(root: Path, armed: Armed) -> AbstractAsyncContextManager[Stack]:
    """HO1 is broken once, and the program's own function answers."""

    async def answer(message: str, **_: Any) -> str:
        await armed.meet()
        return "an answer"

    def script(wo: Any) -> Any:
        return RuntimeError("broken") if "attack" in str(wo.input_context) and wo.wo_type == "synthesize" else fitting(wo)

    return open_by_hand(root, ScriptedExecutor(script), degraded_call=answer)


PARTS: dict[str, Callable[[Path, Armed], AbstractAsyncContextManager[Stack]]] = {
    "learned lines": partial(remembering, method="read_active_biases"),
    "signals": partial(remembering, method="log_turn"),
    "gates": partial(remembering, method="check_gate"),
    "reader": reading,
    "executor": executing,
    "degraded call": degraded,
}
ODD, EVEN = [*PARTS][::2], [*PARTS][1::2]
ODD_IN_SOAK, EVEN_IN_SOAK = ([pytest.param(each, marks=pytest.mark.soak) for each in parts] for parts in (ODD, EVEN))


async def attack(stack: Stack, **options: Any) -> None:
    await stack.supervisor.handle_turn("attack", **options)


async def check(stack: Stack, session_id: str, reason: str) -> None:
    """Asserts that the session's one turn was aborted so, that nothing else failed, and that the next one is answered."""
    aborted = await stack.payloads(events.TURN_ABORTED, session_id=session_id)
    assert [each["reason"] for each in aborted] == [reason]
    result = await stack.turn("hello", session_id=session_id)
    assert (result.response, result.error) == ("re: hello", None)


@pytest.mark.parametrize("part", PARTS)
async def test_a_turn_that_its_caller_cancels(tmp_path: Path, part: str) -> None:
    armed = Armed()
    async with PARTS[part](tmp_path, armed) as stack, nothing_goes_wrong(but=("executor failed",)):
        for name in FAILING:
            session_id = await stack.supervisor.start_session(subject_id="ada")
            armed.arm(name)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(attack, stack, session_id=session_id))
                await armed.met.wait()
                tasks.cancel_scope.cancel()
            await check(stack, session_id, "cancelled")


@on_asyncio
@pytest.mark.parametrize("part", [*ODD, *EVEN_IN_SOAK])
async def test_a_turn_whose_task_is_cancelled_natively(tmp_path: Path, part: str) -> None:
    armed = Armed()
    async with PARTS[part](tmp_path, armed) as stack, nothing_goes_wrong(but=("executor failed",)):
        for name in FAILING:
            session_id = await stack.supervisor.start_session(subject_id="ada")
            armed.arm(name)
            task = asyncio.ensure_future(attack(stack, session_id=session_id))
            await armed.met.wait()
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled(), name
            await check(stack, session_id, "cancelled")


@pytest.mark.parametrize("part", [*EVEN, *ODD_IN_SOAK])
async def test_a_turn_whose_deadline_passes(tmp_path: Path, part: str) -> None:
    armed = Armed()
    async with PARTS[part](tmp_path, armed) as stack, nothing_goes_wrong(but=("executor failed",)):
        for name in ("tasks", "a group with an exit", "a timeout", "a lingering error"):
            for deadline in (0.05, 1, 10):
                session_id = await stack.supervisor.start_session(subject_id="ada")
                armed.arm(name)
                with pytest.raises(TurnTimeout):
                    await attack(stack, session_id=session_id, deadline=deadline)
                if armed.met.is_set():
                    break
            await check(stack, session_id, "timeout")


async def test_a_reader_that_reaches_the_time_limit_of_the_context(tmp_path: Path) -> None:
    """It costs its context, whatever it raises."""
    armed = Armed()
    async with reading(tmp_path, armed, attention_timeout_ms=20) as stack, nothing_goes_wrong():
        for name in FAILING:
            armed.arm(name)
            result = await stack.turn("hello")
            assert (result.response, result.error) == ("re: hello", None)
            (planned,) = (await stack.payloads(events.WO_PLANNED, session_id=result.session_id))[1:]
            assert planned["attention"]["cut_by"] == "time"
        assert await stack.payloads(events.TURN_ABORTED) == []


@pytest.mark.parametrize("method", ["read_signals", "read_events", "log_overlay"])
async def test_a_consolidation_that_its_caller_cancels(tmp_path: Path, method: str) -> None:
    """The next one need not wait, as after a failure, and learns."""
    armed = Armed()
    async with open_remembering(tmp_path, wrap=partial(Remembers, method=method, armed=armed)) as (stack, _):
        for subject, name in enumerate(FAILING):
            await stack.turn("hello", subject_id=f"subject-{subject}")
            learn = partial(stack.supervisor.run_consolidation, [QUESTIONS], namespace=f"ADMIN/subject-{subject}")
            armed.arm(name)
            async with nothing_goes_wrong(), anyio.create_task_group() as tasks:
                tasks.start_soon(learn)
                await armed.met.wait()
                tasks.cancel_scope.cancel()
            (wo,) = await learn()
            assert wo.state == "completed", name


async def test_a_consolidation_that_reaches_its_time_limit(tmp_path: Path) -> None:
    """Whatever HO1 raises then, the limit is on record as the reason."""
    armed = Armed()

    async def script(wo: Any) -> Mapping[str, Any]:
        if wo.wo_type == "consolidate":
            await armed.meet()
        return fitting(wo)

    async with open_remembering(tmp_path, ScriptedExecutor(script), consolidation_deadline_s=0.02) as (stack, _):
        for subject, name in enumerate(FAILING):
            await stack.turn("hello", subject_id=f"subject-{subject}")
            armed.arm(name)
            await stack.supervisor.run_consolidation([QUESTIONS], namespace=f"ADMIN/subject-{subject}")
        failed = await stack.payloads(events.WO_FAILED)
    assert [each["reason"] for each in failed] == ["TIMEOUT"] * len(FAILING)


def consolidating(armed: Armed) -> ScriptedProvider:
    async def gate(request: PromptRequest) -> None:
        if request.wo_type == "consolidate":
            await armed.meet()

    return student(gate=gate)


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
async def test_a_consolidation_in_the_background_whose_runtime_closes(tmp_path: Path, behaviour: str) -> None:
    armed = Armed()
    armed.arm(behaviour)
    soon: Any = {"limits": {"shutdown_grace_s": 0.01}, **EASY}
    async with nothing_goes_wrong(), open_scripted(tmp_path, consolidating(armed), **soon) as runtime:
        await say(runtime)
        await armed.met.wait()


async def test_a_consolidation_in_the_background_whose_subject_is_erased(tmp_path: Path) -> None:
    armed = Armed()
    sealed = QUICK.model_copy(update={"seal": True})
    async with nothing_goes_wrong(), open_scripted(tmp_path, consolidating(armed), ledger=sealed, **EASY) as runtime:
        for name in BEHAVIOURS:
            armed.arm(name)
            await say(runtime)
            await armed.met.wait()
            await runtime.erase_subject("ada")
        assert (await say(runtime)).error is None


async def test_tools_in_threads_that_fail_when_nobody_waits_for_them_any_more(tmp_path: Path) -> None:
    """A thread cannot be stopped, so it fails only later."""
    errors = [ValueError("late"), SystemExit(3), BaseExceptionGroup("two", [SystemExit(3), ValueError("b")])]
    begun, go_on, ended = threading.Semaphore(0), threading.Event(), threading.Semaphore(0)

    @tool
    def wait(number: int) -> None:
        """Waits, and fails."""
        begun.release()
        go_on.wait(20)
        try:
            raise errors[number]
        finally:
            ended.release()

    def answer(request: PromptRequest) -> Any:
        has_tool = request.wo_type == "synthesize" and request.call == 1 and request.variables["user_message"].isdigit()
        return use_tool("wait", number=int(request.variables["user_message"])) if has_tool else echo(request)

    async with nothing_goes_wrong(), open_scripted(tmp_path, ScriptedProvider(answer), tools=[wait]) as runtime:
        async with anyio.create_task_group() as tasks:
            for number in range(len(errors)):
                tasks.start_soon(runtime.supervisor().handle_turn, f"{number}")
            for _ in errors:
                await anyio.to_thread.run_sync(begun.acquire)
            tasks.cancel_scope.cancel()
        go_on.set()
        for _ in errors:
            await anyio.to_thread.run_sync(ended.acquire)
        assert (await runtime.supervisor().handle_turn("hello")).response == "echo: hello"


ERRORS: dict[str, Callable[[], BaseException]] = {
    "an error": lambda: ValueError("the socket is closed"),
    "an exit": lambda: SystemExit(3),
    "a group": lambda: ExceptionGroup("two", [ValueError("a"), OSError("b")]),
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("update", [WorkOrderPlanned, TextDelta, ToolStarted, ToolProgress])
async def test_a_listener_that_fails_ends_its_own_call(tmp_path: Path, update: type[TurnUpdate], error: str) -> None:
    """Also one that nobody has stopped, as where a web socket is closed. Regression: it counted as a failure of the executor,
    and enough of them stopped the runtime."""
    raised = ERRORS[error]()

    async def listen(each: TurnUpdate) -> None:
        if isinstance(each, update):
            raise raised

    @tool
    async def tell() -> AsyncIterator[object]:
        """Tells of its progress."""
        yield 0.5
        yield "done"

    def answer(request: PromptRequest) -> Any:
        return use_tool("tell") if request.wo_type == "synthesize" and request.call == 1 else echo(request)

    config: dict[str, Any] = {"limits": {"max_restarts": 1}, "tools": [tell]}
    async with nothing_goes_wrong(), open_scripted(tmp_path, ScriptedProvider(answer), **config) as runtime:
        supervisor = runtime.supervisor()
        session_id = await supervisor.start_session()
        with pytest.raises(type(raised)) as caught:
            await supervisor.handle_turn("hello", session_id=session_id, listener=listen)
        assert caught.value is raised
        ho2m = runtime.ledgers().ho2m
        aborted = await read_all(ho2m, entry_type=events.TURN_ABORTED)
        assert [each.payload["reason"] for each in aborted] == ["cancelled"]
        assert await read_all(ho2m, entry_type=events.DEGRADATION) == []
        assert (await supervisor.handle_turn("again", session_id=session_id)).response == "echo: again"


class Connected:
    """A connection to an MCP server, of which one step is the foreign code."""

    def __init__(self, step: str, armed: Armed) -> None:
        self._step, self._armed = step, armed
        self.lost, self.tools_changed, self.server, self.protocol = anyio.Event(), anyio.Event(), "fake", "1"

    async def at(self, step: str) -> None:
        if step == self._step:
            await self._armed.meet()

    async def list_tools(self) -> ToolList:
        await self.at("list")
        return ToolList([], None)

    async def follow_changes(self) -> bool:
        await self.at("follow")
        return False

    async def cause(self, text: str) -> str:
        return text


@pytest.mark.parametrize("step", ["open", "list", "follow", "close"])
async def test_a_connection_to_an_mcp_server_that_is_stopped(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its time limit, if it is not open before, and then by the end of its task group. That ends without an error.

    Only the protocol's library runs there, so nothing follows changes with an exit, which would end asyncio's event loop.
    """
    armed = Armed()

    @asynccontextmanager
    async def open_connection(*_: object) -> AsyncIterator[Connected]:
        connection = Connected(step, armed)
        await connection.at("open")
        try:
            yield connection
        finally:
            await connection.at("close")

    monkeypatch.setattr(mcp_server, "open_connection", open_connection)
    opens = step in ("open", "list")
    settings = McpServerConfig(command="none", connect_timeout_s=0.02 if opens else 60.0, backoff_max_s=60.0)
    for name in (each for each in BEHAVIOURS if step != "follow" or "exit" not in each):
        armed.arm(name)
        async with nothing_goes_wrong(), anyio.create_task_group() as tasks:
            servers = await open_servers({"fs": settings}, tasks)
            if step != "close":
                await armed.met.wait()
            await servers.settle()
            await servers.servers["fs"].is_decided()
            if opens and name != "no end":
                problem = servers.reports()["fs"].problem
                assert problem == "it did not list its tools within connect_timeout_s = 0.02", name
            tasks.cancel_scope.cancel()


DOORS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat completions": (COMPLETIONS, chat_body("attack", stream=True)),
    "responses": ("/v1/responses", {"model": "ADMIN", "input": "attack", "stream": True}),
    "AG-UI": (
        "/v1/agui/ADMIN",
        {"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": "attack"}]},
    ),
    "messages": ("/v1/sessions/{session_id}/messages", {"message": "attack", "stream": True}),
    "whole": (COMPLETIONS, chat_body("attack")),
}
"""The ways to a turn over HTTP: a path and a body each."""


@asynccontextmanager
async def at_the_door(
    root: Path, door: str, provider: ScriptedProvider | None = None
) -> AsyncIterator[tuple[Client, Callable[..., Coroutine[Any, Any, None]]]]:
    """A server whose clients come with connections of the test, and a function that asks through one."""
    path, body = DOORS[door]
    async with serving(root, provider, serve={"client_gone": "cancel"}) as client:
        session_id = await client.runtime.supervisor().start_session(subject_id="local")

        async def ask(asked: Asked, around: Callable[[ASGIApp], ASGIApp] = lambda app: app) -> None:
            headers = {"x-subject-id": "local"} if door == "messages" else {}
            at = path.format(session_id=session_id)
            await run_request(around(client.server.app), asked, "POST", at, [orjson.dumps(body)], headers)

        yield client, ask


@pytest.mark.parametrize("door", DOORS)
async def test_a_client_that_goes_while_its_turn_runs(tmp_path: Path, door: str) -> None:
    """Its turn is aborted on record."""
    armed = Armed()

    async def gate(request: PromptRequest) -> None:
        await armed.meet()

    async with at_the_door(tmp_path, door, ScriptedProvider(echo, gate=gate)) as (client, ask), nothing_goes_wrong():
        for name in BEHAVIOURS:
            armed.arm(name)
            async with anyio.create_task_group() as tasks:
                asked = Asked()
                asked.taking.set()
                tasks.start_soon(ask, asked)
                await armed.met.wait()
                asked.gone.set()
            await client.runtime.drain()
        assert (await client.chat("hello")).text == "echo: hello"
        aborted = await read_all(client.runtime.ledgers().ho2m, entry_type=events.TURN_ABORTED)
    assert [each.payload["reason"] for each in aborted] == ["cancelled"] * len(BEHAVIOURS)


@pytest.mark.parametrize("door", [each for each in DOORS if each != "whole"])
async def test_a_client_that_goes_while_it_is_written_to(tmp_path: Path, door: str) -> None:
    """What its connection raises then is of no interest; its turn is aborted or complete, and the next client is served."""
    armed = Armed()

    class Broken(Asked):
        async def send(self, message: Message) -> None:
            await super().send(message)
            if message.get("body"):
                await armed.meet()

    async with at_the_door(tmp_path, door) as (client, ask), nothing_goes_wrong():
        for name in BEHAVIOURS:
            asked = Broken()
            asked.taking.set()
            armed.arm(name)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, asked)
                await armed.met.wait()
                asked.gone.set()
            await client.runtime.drain()
        assert (await client.chat("hello")).text == "echo: hello"


@pytest.mark.parametrize("door", DOORS)
async def test_a_connection_whose_watch_fails_when_it_is_no_longer_needed(tmp_path: Path, door: str) -> None:
    """The answer is whole."""
    armed = Armed()

    def around(app: ASGIApp) -> ASGIApp:
        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            has_body = False

            async def broken() -> Message:
                nonlocal has_body
                if not has_body:
                    has_body = True
                    return await receive()
                await armed.meet()
                return await receive()

            await app(scope, broken, send)

        return watched

    async with at_the_door(tmp_path, door) as (_, ask), nothing_goes_wrong():
        for name in BEHAVIOURS:
            armed.arm(name)
            asked = Asked()
            asked.taking.set()
            await ask(asked, around)
            assert asked.status == 200, name
            assert b"attack" in asked.body, name
