"""A slow model fills the queue of its lane in the gateway; a turn without room at its deadline is overloaded, on record."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kitchener import tool
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.config import ProviderConfig, Route, RouterConfig, RuntimeConfig
from kitchener.errors import Overloaded, TurnOverloaded, TurnTimeout
from kitchener.records import events
from kitchener.records.prompt import Attempt, PromptRequest
from kitchener.runtime import Runtime, open_runtime
from kitchener.testing import ScriptedProvider, prompt_request
from kitchener.testing.replays import assert_replays
from tests.acceptance.stack import QUESTION, echo, open_scripted, outcome, read_all, scripted_config
from tests.actors.time_control import settle
from tests.shared.property_examples import examples

FAST = "RESIDENT:fast"
SHORT_S = 1.2
"""A deadline that a test lets pass; longer than a turn takes until its call waits."""


class Slow:
    """A provider's gate that holds every call until it opens."""

    def __init__(self) -> None:
        self.opened = anyio.Event()
        self.arrived = 0

    async def __call__(self, request: PromptRequest) -> None:
        self.arrived += 1
        await self.opened.wait()


@dataclass
class Crowd:
    """A runtime with a slow and a fast provider, and turns that run in it."""

    runtime: Runtime
    gate: Slow
    tasks: anyio.abc.TaskGroup
    ends: Counter[str]

    def send(self, count: int, subject: str | None = None) -> None:
        """Starts so many turns, each of a subject of its own unless one is named."""
        for number in range(count):
            self.tasks.start_soon(self.send_one, subject or f"subject {number}")

    async def send_one(self, subject_id: str, deadline: float | None = None) -> None:
        """Runs one turn, and counts how it ended."""
        found = await outcome(self.runtime.supervisor().handle_turn("hello", subject_id=subject_id, deadline=deadline))
        self.ends[type(found).__name__] += 1

    def lane(self, actor: str = "gateway", lane: str = "slow") -> tuple[int, int, int]:
        """What runs, waits and asks for room."""
        found = self.runtime.statistics()["mailboxes"][actor][lane]
        return found.running, found.waiting, found.asking_for_room

    async def until(self, lane: tuple[int, int, int], actor: str = "gateway", name: str = "slow") -> None:
        """Returns when the lane is so full."""
        with anyio.fail_after(30):
            while self.lane(actor, name) != lane:
                await settle()  # looking after each step would cost more than the turns
        await settle()
        assert self.lane(actor, name) == lane


def config_of(root: Path, slow: ProviderConfig, limits: dict[str, int]) -> RuntimeConfig:
    """The default provider is slow; one agent class has a fast one."""
    router = RouterConfig(
        default_provider="slow",
        providers={"slow": slow, "fast": ProviderConfig(kind="offline")},
        domain_tag_routes={"fast": Route(provider_id="fast")},
    )
    fast = {"domain_tags": ("fast",), "tools": ("*",), "reply_reserve_s": 0.0}
    return scripted_config(root, limits=limits, agents={FAST: fast}).model_copy(update={"router": router})


@asynccontextmanager
async def crowd(
    root: Path, places: int | None = None, tools: Sequence[Callable[..., Any]] = (), fast: Any = echo, **limits: int
) -> AsyncIterator[Crowd]:
    """A runtime whose default provider is slow. At the end the provider answers, and every turn ends."""
    gate = Slow()
    slow = ProviderConfig(kind="offline") if places is None else ProviderConfig(kind="offline", max_concurrency=places)
    config = config_of(root, slow, limits)
    providers = {"slow": ScriptedProvider(echo, gate=gate), "fast": ScriptedProvider(fast)}
    async with open_runtime(config, providers=providers, tools=tools) as runtime, anyio.create_task_group() as tasks:
        yield Crowd(runtime, gate, tasks, Counter())
        gate.opened.set()


async def test_the_defaults_let_a_slow_provider_fill_the_gateways_queue_and_then_the_executors(tmp_path: Path) -> None:
    """Not one setting is changed: 400 turns wait in three places, and all are answered in the end."""
    async with crowd(tmp_path) as found:
        found.send(400)
        await found.until((64, 64, 128))
        await found.until((256, 128, 16), "ADMIN", "interactive")
        assert found.gate.arrived == 64
        answer = await found.runtime.supervisor(FAST).handle_turn("hello", subject_id="ada")
        assert answer.response == "echo: hello"
    assert found.ends == {"TurnResult": 400}
    assert found.lane() == found.lane("ADMIN", "interactive") == (0, 0, 0)


async def read_all_updates(supervisor: HO2Supervisor, session_id: str) -> None:
    """A streamed turn, read to its end."""
    async for _ in supervisor.stream_turn("hello", session_id=session_id, deadline=SHORT_S):
        pass


HOW: dict[str, Callable[[HO2Supervisor, str], Awaitable[Any]]] = {
    "handle_turn": lambda supervisor, session_id: supervisor.handle_turn("hello", session_id=session_id, deadline=SHORT_S),
    "stream_turn": read_all_updates,
}


@pytest.mark.parametrize("how", HOW)
async def test_a_turn_without_room_in_the_gateway_is_overloaded_at_its_deadline_and_on_record(tmp_path: Path, how: str) -> None:
    """Nothing was started; the session, the other turns, other providers and other subjects go on."""
    async with crowd(tmp_path, places=1, gateway_queue=2) as found:
        supervisor = found.runtime.supervisor()
        session_id = await supervisor.start_session(subject_id="late")
        found.send(3)
        await found.until((1, 2, 0))
        refusal = await outcome(HOW[how](supervisor, session_id))
        assert isinstance(refusal, TurnOverloaded)
        assert (refusal.what, refusal.limit) == ("the queue of the gateway for provider 'slow'", 2)
        assert f"turn {refusal.turn_id} waited for room until its deadline and was aborted" in str(refusal)
        assert (await found.runtime.supervisor(FAST).handle_turn("hello", subject_id="late")).response == "echo: hello"
        found.gate.opened.set()
        assert (await supervisor.handle_turn("again", session_id=session_id)).response == "echo: again"
        ledgers = found.runtime.ledgers()
        (aborted,) = await read_all(ledgers.ho2m, session_id=session_id, entry_type=events.TURN_ABORTED)
        (abandoned,) = await read_all(ledgers.ho2m, session_id=session_id, entry_type=events.WO_ABANDONED)
        assert aborted.entity_id == refusal.turn_id
        assert (aborted.payload["reason"], abandoned.payload["reason"]) == ("overloaded", "overloaded")
        begun = await read_all(ledgers.ho1m, session_id=session_id, entry_type=events.OF_MODEL_CALLS)
        assert {each.payload["turn_id"] for each in begun}.isdisjoint({aborted.entity_id})
    assert found.ends == {"TurnResult": 3}
    await assert_replays(session_id, config=config_of(tmp_path, ProviderConfig(kind="offline"), {}))


async def test_a_turn_without_room_in_the_executor_is_overloaded_at_its_deadline_and_on_record(tmp_path: Path) -> None:
    async with crowd(tmp_path, executor_concurrency=4) as found:
        supervisor = found.runtime.supervisor()
        session_id = await supervisor.start_session(subject_id="late")
        found.send(6)
        await found.until((4, 2, 0), "ADMIN", "interactive")
        with pytest.raises(Overloaded) as caught:
            await supervisor.handle_turn("hello", session_id=session_id, deadline=SHORT_S)
        assert (caught.value.what, caught.value.limit) == ("the mailbox of HO1 ADMIN", 2)
        (aborted,) = await read_all(found.runtime.ledgers().ho2m, session_id=session_id, entry_type=events.TURN_ABORTED)
        assert aborted.payload["reason"] == "overloaded"
    assert found.ends == {"TurnResult": 6}


@pytest.mark.parametrize("stands", ["running", "in the queue"])
async def test_a_turn_that_had_room_is_late_and_not_overloaded(tmp_path: Path, stands: str) -> None:
    async with crowd(tmp_path, places=1, gateway_queue=2) as found:
        if stands == "in the queue":
            found.send(1)
            await found.until((1, 0, 0))
        late = await outcome(found.runtime.supervisor().handle_turn("hello", subject_id="late", deadline=SHORT_S))
        assert isinstance(late, TurnTimeout)


async def test_one_subjects_waiting_calls_leave_places_and_room_to_others(tmp_path: Path) -> None:
    """One subject fills its share of the lane and of its queue; another one is called at once, and a third one has room."""
    async with crowd(tmp_path, places=8, gateway_queue=8) as found:
        found.send(40, "mallory")
        await found.until((7, 6, 27))
        found.send(2, "ada")
        await found.until((8, 7, 27))
    assert found.ends == {"TurnResult": 42}


async def test_a_cancelled_caller_frees_its_place_at_once(tmp_path: Path) -> None:
    async with crowd(tmp_path, places=1, gateway_queue=1) as found:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                for number in range(3):
                    tasks.start_soon(found.runtime.supervisor().handle_turn, f"message {number}")
                await found.until((1, 1, 1))
                scope.cancel()
        assert found.lane() == (0, 0, 0)
        assert found.lane("ADMIN", "interactive") == (0, 0, 0)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from("abc")),
        st.tuples(st.just("cancel"), st.integers(0, 20)),
        st.tuples(st.just("settle"), st.none()),
        st.tuples(st.just("tick"), st.integers(1, 9)),
    ),
    min_size=5,
    max_size=25,
)


@settings(max_examples=examples(few=5, many=300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps, st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
async def test_whatever_is_cancelled_each_message_has_one_end_on_record(
    tmp_path_factory: pytest.TempPathFactory, script: list[tuple[str, Any]], places: int, queue: int, workers: int
) -> None:
    async with crowd(
        tmp_path_factory.mktemp("root"), places=places, gateway_queue=queue, executor_concurrency=workers
    ) as found:
        scopes: list[anyio.CancelScope] = []

        async def send(scope: anyio.CancelScope, subject_id: str) -> None:
            with scope:
                await found.runtime.supervisor().handle_turn("hello", subject_id=subject_id)

        async with anyio.create_task_group() as tasks:
            for step, what in script:
                if step == "send":
                    scopes.append(anyio.CancelScope())
                    tasks.start_soon(send, scopes[-1], what)
                elif step == "cancel" and scopes:
                    scopes[what % len(scopes)].cancel()
                elif step == "settle":
                    await settle()
                else:
                    for _ in range(what if step == "tick" else 0):
                        await anyio.lowlevel.checkpoint()
            found.gate.opened.set()
        entries = await read_all(found.runtime.ledgers().ho2m)
        kinds = Counter(entry.entry_type for entry in entries)
        assert kinds[events.TURN_STARTED] == kinds[events.TURN_COMPLETED] + kinds[events.TURN_ABORTED]
        assert kinds[events.TURN_COMPLETED] >= sum(not scope.cancel_called for scope in scopes)
        assert found.lane() == found.lane("ADMIN", "interactive") == (0, 0, 0)


async def test_statistics_tell_how_many_waited_and_how_many_gave_up(tmp_path: Path) -> None:
    async with open_scripted(tmp_path, ScriptedProvider(echo), lane={"max_concurrency": 1}) as runtime:
        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(runtime.supervisor().handle_turn, f"message {number}")
        found = runtime.statistics()["mailboxes"]["gateway"]["scripted"]
        assert (found.running, found.waiting, found.asking_for_room, found.given_up) == (0, 0, 0, 0)
        assert (found.waited > 0) == (found.longest_wait_s > 0.0)


async def test_a_call_of_a_tool_that_finds_no_room_does_not_make_its_turn_overloaded(tmp_path: Path) -> None:
    """The turn goes on after the tool's error, and is late for another reason."""
    runtimes: list[Runtime] = []

    @tool(read_only=True)
    async def ask_the_slow_one() -> str:
        """Asks a model by itself, and finds its queue full."""
        request = prompt_request("hello", within_s=0.01, provider_id="slow")

        async def quiet(attempt: Attempt) -> None:
            raise AssertionError("no attempt begins")

        with pytest.raises(Overloaded):
            await runtimes[0].gateway.complete(request, on_attempt=quiet)
        await anyio.sleep_forever()
        raise AssertionError

    def model(request: PromptRequest) -> Any:
        wanted = {"tool_id": "ask_the_slow_one", "arguments": {}}
        return {**QUESTION, "speech_act": "command", "tool_request": wanted} if request.wo_type == "classify" else echo(request)

    async with crowd(tmp_path, places=1, tools=[ask_the_slow_one], fast=model, gateway_queue=1) as found:
        runtimes.append(found.runtime)
        found.send(2)
        await found.until((1, 1, 0))
        turn = found.runtime.supervisor(FAST).handle_turn("go", subject_id="late", deadline=SHORT_S)
        assert isinstance(await outcome(turn), TurnTimeout)
        assert found.lane() == (1, 1, 0)
        assert found.runtime.statistics()["mailboxes"]["gateway"]["slow"].given_up == 1
