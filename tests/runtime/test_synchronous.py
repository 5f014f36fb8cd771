"""A runtime for scripts: one conversation, no `async`, and Ctrl-C cancels the turn. See docs/runtime.md."""

import inspect
import signal
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from pydantic import BaseModel

from kitchener import Runtime, TurnTimeout, open_runtime, open_sync, tool
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.errors import ApprovalAnswered, CallerError, ConfigError, RuntimeClosed
from kitchener.records import events
from kitchener.records.prompt import PromptRequest, ToolUse
from kitchener.runtime import SyncRuntime
from kitchener.testing import FakeClock, ScriptedProvider
from kitchener.times import iso_of
from tests.acceptance.approval.kit import Desk, model
from tests.acceptance.stack import QUESTION, echo, read_all, scripted_config
from tests.shared.payloads import payload_of

Backend = Literal["asyncio", "trio"]
BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])


class Mood(BaseModel):
    mood: str


@BACKENDS
def test_a_script_gets_an_object(tmp_path: Path, backend: Backend) -> None:
    """Typed by the model class; the next question has text again."""
    providers = {"scripted": ScriptedProvider([QUESTION, {"mood": "calm"}, QUESTION, "text"])}
    with open_sync(scripted_config(tmp_path), providers=providers, backend=backend) as agent:
        result = agent.ask("hello", output=Mood)
        assert result.output is not None
        mood: str = result.output.mood  # mypy reads the type of the model
        assert (mood, result.response) == ("calm", '{"mood":"calm"}')
        assert agent.ask("hello").output is None


@BACKENDS
def test_a_script_talks_with_an_agent_and_finds_the_session_again(tmp_path: Path, backend: Backend) -> None:
    providers = {"scripted": ScriptedProvider(echo)}
    config = scripted_config(tmp_path)
    with open_sync(config, providers=providers, subject_id="ada", backend=backend) as agent:
        first, second = agent.ask("hello"), agent.ask("again")
        assert [first.response, second.response] == ["echo: hello", "echo: again"]
        assert first.session_id == second.session_id == agent.session_id
        agent.session_id = None
        assert agent.ask("anew").session_id != first.session_id
    with open_sync(config, providers=providers, subject_id="ada", backend=backend) as agent:
        agent.session_id = first.session_id
        agent.ask("later")
        assert agent.call(history, agent.runtime, first.session_id) == ["hello", "again", "later"]
    with open_sync(config, providers=providers, subject_id="bo", backend=backend) as agent:
        assert [agent.ask("hi").session_id] == [each.session_id for each in agent.call(sessions_of, agent.runtime, "bo")]


async def history(runtime: Runtime, session_id: str) -> list[str]:
    session = await runtime.supervisor().session(session_id)
    return [each.user_message async for each in session.read_history()]


async def sessions_of(runtime: Runtime, subject_id: str) -> Any:
    return await runtime.sessions(subject_id=subject_id)


@BACKENDS
def test_a_script_answers_what_waits(tmp_path: Path, backend: Backend) -> None:
    """Of its own subject, also before its conversation has begun; a finished one waits for nobody."""
    desk, uses = Desk(), [[("delete", {"path": "a"}), ("delete", {"path": "b"})]]
    config = scripted_config(tmp_path)
    for subject_id in ("ada", "bo"):
        with open_sync(
            config, tools=desk.tools, providers={"scripted": model(*uses)}, subject_id=subject_id, backend=backend
        ) as agent:
            assert agent.pending_approvals() == []
            agent.ask("tidy up")
    with open_sync(config, tools=desk.tools, providers={"scripted": model(*uses)}, subject_id="ada", backend=backend) as agent:
        waiting = agent.pending_approvals()
        assert [(each.tool_id, each.arguments, each.rule, each.subject_id) for each in waiting] == [
            ("delete", {"path": "a"}, "tool", "ada"),
            ("delete", {"path": "b"}, "tool", "ada"),
        ]
        assert agent.approve(waiting[0].approval_id, arguments={"path": "c"}, answered_by="ada") is None
        assert [each.status for each in agent.pending_approvals()] == ["answered", "waiting"]
        result = agent.deny(waiting[1].approval_id, "keep it")
        assert result is not None
        assert "deleted c" in result.response
        assert "keep it" in result.response
        agent.session_id = result.session_id
        assert agent.pending_approvals() == []
        with pytest.raises(ApprovalAnswered):
            agent.deny(waiting[0].approval_id)
        others = agent.call(agent.runtime.pending_approvals)
        assert {each.subject_id for each in others} == {"bo"}
    assert desk.done == ["delete c"]


def test_a_script_answers_what_an_agent_asks_that_its_agent_asked(tmp_path: Path) -> None:
    def model(request: PromptRequest) -> Any:
        if request.messages[-1].role == "tool":
            return f"They say {request.messages[-1].content}"
        (tool_id,) = [each.tool_id for each in request.tools]
        return ToolUse("u1", tool_id, {"message": "Delete a."} if tool_id == "ask_clerk" else {"path": "a"})

    desk = Desk()
    clerk = {"CLERK": {"classify": "off", "tools": ("delete",)}}
    config = scripted_config(tmp_path, agents=clerk, tools=("agent:CLERK",), classify="off")
    with open_sync(config, tools=desk.tools, providers={"scripted": ScriptedProvider(model)}) as agent:
        for answer in (agent.deny, agent.approve):
            agent.ask("Delete a.")
            (waiting,) = agent.pending_approvals()
            assert (waiting.agent_class, waiting.tool_id) == ("CLERK", "delete")
            assert answer(waiting.approval_id) is not None
            assert agent.pending_approvals() == []
            assert answer(waiting.approval_id) is not None, "the same answer again"
    assert desk.done == ["delete a"]


def test_a_script_without_a_subject_sees_nobody_elses_requests(tmp_path: Path) -> None:
    desk, config, providers = Desk(), scripted_config(tmp_path), {"scripted": model([("delete", {"path": "a"})])}
    with open_sync(config, tools=desk.tools, providers=providers, subject_id="ada") as agent:
        agent.ask("tidy up")
    with open_sync(config, tools=desk.tools, providers=providers) as agent:
        assert agent.pending_approvals() == []
        agent.ask("tidy up")
        (mine,) = agent.pending_approvals()
        assert mine.session_id == agent.session_id


@BACKENDS
def test_ctrl_c_cancels_the_turn_and_the_conversation_goes_on(tmp_path: Path, backend: Backend) -> None:
    """The interrupt arrives while a tool runs: its turn is aborted on record before KeyboardInterrupt is raised."""
    main, has_interrupted = threading.main_thread(), False

    @tool(read_only=True)
    async def wait() -> str:
        """Waits until it is cancelled."""
        signal.pthread_kill(main.ident or 0, signal.SIGINT)
        await anyio.sleep_forever()
        raise AssertionError

    def model(request: Any) -> Any:
        if request.wo_type == "classify" and request.variables["user_message"] == "wait":
            return {**QUESTION, "speech_act": "command", "tool_request": {"tool_id": "wait", "arguments": {}}}
        return echo(request)

    assert threading.current_thread() is main
    config, providers = scripted_config(tmp_path), {"scripted": ScriptedProvider(model)}
    with open_sync(config, providers=providers, tools=[wait], backend=backend) as agent:
        try:
            agent.ask("wait")
        except KeyboardInterrupt:
            has_interrupted = True
        assert has_interrupted
        aborted = agent.call(aborts, agent.runtime)
        assert aborted == ["cancelled"]
        assert agent.ask("hello").response == "echo: hello"


async def aborts(runtime: Runtime) -> list[str]:
    return [payload_of(each)["reason"] for each in await read_all(runtime.ledgers().ho2m, entry_type=events.TURN_ABORTED)]


@BACKENDS
def test_errors_are_those_of_the_runtime(tmp_path: Path, backend: Backend) -> None:
    with pytest.raises(ConfigError), open_sync(tmp_path / "none.toml", backend=backend):
        raise AssertionError

    async def never(_: Any) -> None:
        await anyio.sleep_forever()

    held = ScriptedProvider(echo, gate=never)
    with (
        open_sync(scripted_config(tmp_path), providers={"scripted": held}, backend=backend) as agent,
        pytest.raises(TurnTimeout),
    ):
        agent.ask("hello", deadline=0.05)
    with pytest.raises(ZeroDivisionError), open_sync(scripted_config(tmp_path), providers={"scripted": held}):
        raise ZeroDivisionError


@pytest.mark.parametrize("backend", ["", "twisted", 5, None])
def test_an_event_loop_that_does_not_exist_is_refused(tmp_path: Path, backend: Any) -> None:
    with pytest.raises(ConfigError, match=r"^argument backend = .*: expected 'asyncio' or 'trio'$"), open_sync(backend=backend):
        raise AssertionError


def test_an_event_loop_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kitchener.runtime.synchronous.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="pip install trio"), open_sync(root=tmp_path, backend="trio"):
        raise AssertionError


@BACKENDS
def test_a_conversation_whose_block_has_ended_says_so(tmp_path: Path, backend: Backend) -> None:
    with open_sync(root=tmp_path, backend=backend) as agent:
        agent.ask("hello")
    with pytest.raises(RuntimeClosed, match="inside the block of `open_sync`"):
        agent.ask("are you there?")
    with pytest.raises(RuntimeClosed):
        agent.pending_approvals()


@BACKENDS
def test_a_conversation_with_an_agent_class_that_is_opened_on_first_use(tmp_path: Path, backend: Backend) -> None:
    """Its ledgers were opened from the script's thread: the reply came late or never, and the block did not end."""
    with open_sync(root=tmp_path, agent_class="GUEST", subject_id="ada", backend=backend) as agent:
        assert agent.ask("hello").response
        with pytest.raises(CallerError, match="opened in another thread"):
            agent.runtime.supervisor("OTHER")


@BACKENDS
def test_a_call_from_another_thread_is_refused(tmp_path: Path, backend: Backend) -> None:
    """As of a web view that calls `asyncio.run`. It waited for ever, and so did the runtime that closed."""
    with open_sync(root=tmp_path, backend=backend) as agent:
        supervisor, runtime = agent.runtime.supervisor(), agent.runtime

        async def streamed() -> None:
            async for _ in supervisor.stream_turn("hello"):
                pass

        calls: list[Callable[[], Awaitable[object]]] = [
            partial(supervisor.handle_turn, "hello"),
            partial(supervisor.handle_turn, "hello", subject_id="ada", idempotency_key="k"),
            streamed,
            supervisor.start_session,
            runtime.sessions,
            runtime.pending_approvals,
            runtime.drain,
            runtime.wait_for_write_failure,
            partial(runtime.erase_subject, "ada"),
        ]
        for call in calls:
            with pytest.raises(CallerError, match=r"takes calls only there: use `anyio.from_thread.run`"):
                anyio.run(call)
        assert agent.call(supervisor.handle_turn, "hello").response


def named(function: Callable[..., object]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    ("here", "there", "of_the_conversation"),
    [
        (open_sync, open_runtime, set()),
        (SyncRuntime.ask, HO2Supervisor.handle_turn, {"session_id", "subject_id", "listener"}),
        (SyncRuntime.approve, HO2Supervisor.approve, {"listener"}),
        (SyncRuntime.deny, HO2Supervisor.deny, {"listener"}),
        (HO2Supervisor.stream_turn, HO2Supervisor.handle_turn, {"listener"}),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_script_can_give_what_an_async_program_can(
    here: Callable[..., object], there: Callable[..., object], of_the_conversation: set[str]
) -> None:
    """Regression: `ask` had no `acceptance`, and `open_sync` no `telemetry`."""
    assert named(there).keys() - named(here).keys() == of_the_conversation
    for name, parameter in named(there).items():
        if name in named(here):
            assert (named(here)[name].default, named(here)[name].kind) == (parameter.default, parameter.kind), name


def test_a_script_brings_its_own_clock_and_criteria(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_sync(scripted_config(tmp_path), providers={"scripted": ScriptedProvider(echo)}, clock=clock) as agent:
        result = agent.ask("hello", acceptance=["contains:bye"], memory=False)
        assert result.degraded
        (info,) = agent.call(agent.runtime.sessions)
    assert info.last_at.startswith(iso_of(clock.time_us())[:10])
