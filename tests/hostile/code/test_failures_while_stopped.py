"""Code of somebody else that fails while it is stopped costs its own turn at most, which ends as what stopped it.

`finally: await connection.close()` may raise when the turn is cancelled, so that the error stands where the cancellation was.
Each test lets many turns wait in one place, each in code with another behaviour, and stops all of them in one way. Regression:
the error ended the worker that ran the code, and with it the runtime; counted against the provider; or aborted the turn as a
crash. docs/actors.md.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener import tool
from kitchener.config import EmbeddingsConfig, ProviderConfig, RouterConfig
from kitchener.errors import SubjectErased, TurnReplaced, TurnShutDown, TurnTimeout
from kitchener.records import events
from kitchener.records.prompt import PromptRequest, PromptResponse, TextPiece
from kitchener.records.turn import TextDelta, ToolProgress, TurnResult, TurnUpdate, UpdateListener, WorkOrderPlanned
from kitchener.runtime import Runtime, open_runtime
from kitchener.testing import ScriptedProvider, use_tool
from tests.acceptance.stack import QUICK, echo, read_all, scripted_config
from tests.hostile.code.stopped_code import Behaviour, Foreign, nothing_goes_wrong
from tests.hostile.code.strays import on_asyncio
from tests.shared.payloads import payload_of

LONG_S = 60.0
Updates = AsyncIterator[TextPiece | PromptResponse]


@dataclass
class Place:
    """Where the foreign code stands, and what a runtime needs for it."""

    provider: Any = field(default_factory=lambda: ScriptedProvider(echo))
    tools: Sequence[Callable[..., object]] = ()
    listens_to: type[TurnUpdate] | None = None
    """The update at which a listener of the caller is the foreign code; None: there is none."""
    embeddings: Any = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ADMIN's `HO2Config`, and other agent classes."""


def said_in(request: PromptRequest) -> str:
    return str(request.variables["user_message"])


class Answers:
    """A provider whose `complete` waits."""

    def __init__(self, foreign: Foreign) -> None:
        self.foreign, self.model = foreign, ScriptedProvider(echo)

    async def complete(self, request: PromptRequest) -> PromptResponse:
        await self.foreign.meet(said_in(request))
        return await self.model.complete(request)


class Streams(Answers):
    """A provider whose stream waits after its first piece."""

    async def complete(self, request: PromptRequest) -> PromptResponse:
        return await self.model.complete(request)

    async def stream(self, request: PromptRequest) -> Updates:
        yield TextPiece(1, "echo")
        await self.foreign.meet(said_in(request))
        yield await self.model.complete(request)


class HeldStream:
    """A stream that hangs after its first piece, and whose `aclose` is the foreign code."""

    def __init__(self, request: PromptRequest, foreign: Foreign, model: ScriptedProvider) -> None:
        self._request, self._foreign, self._model = request, foreign, model
        self._has_begun = False
        self._close: Behaviour | None = None

    def __aiter__(self) -> "HeldStream":
        return self

    async def __anext__(self) -> TextPiece | PromptResponse:
        if not self._has_begun:
            self._has_begun = True
            return TextPiece(1, "echo")
        self._close = self._foreign.arrive(said_in(self._request))
        if self._close is not None:
            await anyio.sleep_forever()
        return await self._model.complete(self._request)

    async def aclose(self) -> None:
        if self._close is not None:
            await self._close()


class Closes(Streams):
    """A provider whose stream fails while it is closed."""

    def stream(self, request: PromptRequest) -> Updates:
        return HeldStream(request, self.foreign, self.model)


class Vectors:
    """An embeddings provider that waits."""

    model_id = "foreign"

    def __init__(self, foreign: Foreign) -> None:
        self._foreign = foreign

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        for text in texts:
            await self._foreign.meet(text)
        return [[1.0, 0.5] for _ in texts]


def calling(*tool_ids: str) -> ScriptedProvider:
    """A model that calls tools, with the message, before its reply to a message of the attack."""

    def answer(request: PromptRequest) -> Any:
        if request.wo_type == "synthesize" and request.call == 1 and request.tools and ": " in said_in(request):
            return tuple(use_tool(each, message=said_in(request)) for each in tool_ids)
        return echo(request)

    return ScriptedProvider(answer)


def tools_of(foreign: Foreign, limit_s: float) -> dict[str, Callable[..., object]]:
    @tool(read_only=True, timeout_s=limit_s)
    async def wait(message: str) -> str:
        """Waits."""
        await foreign.meet(message)
        return "done"

    @tool(timeout_s=limit_s)
    async def steps(message: str) -> Any:
        """Waits after its first step."""
        yield 0.5
        await foreign.meet(message)
        yield "done"

    @tool(read_only=True)
    async def work(message: str) -> str:
        """Works, beside one that waits."""
        return "done"

    @tool
    async def tell(message: str) -> Any:
        """Tells of its progress."""
        yield 0.5
        yield "done"

    return {"wait": wait, "steps": steps, "work": work, "tell": tell}


def tool_place(*tool_ids: str, listens_to: type[TurnUpdate] | None = None) -> Callable[[Foreign, float], Place]:
    def place(foreign: Foreign, limit_s: float) -> Place:
        tools = tools_of(foreign, limit_s)
        return Place(calling(*tool_ids), [tools[each] for each in tool_ids], listens_to)

    return place


def agent_place(foreign: Foreign, limit_s: float) -> Place:
    """Another agent is a tool of the one that is asked; its model is the foreign code."""
    asking, answering = calling("ask_other"), Answers(foreign)

    class Models:
        async def complete(self, request: PromptRequest) -> PromptResponse:
            return await (answering if not request.tools else asking).complete(request)

    other = {"OTHER": {"classify": "off"}}
    return Place(
        Models(), settings={"tools": ("agent:OTHER",), "tool_limits": {"ask_other": {"timeout_s": limit_s}}, "agents": other}
    )


PLACES: dict[str, Callable[[Foreign, float], Place]] = {
    "provider": lambda foreign, _: Place(Answers(foreign)),
    "stream": lambda foreign, _: Place(Streams(foreign)),
    "close of a stream": lambda foreign, _: Place(Closes(foreign)),
    "embeddings": lambda foreign, _: Place(embeddings=Vectors(foreign), settings={"context_mode": "enforce"}),
    "tool": tool_place("wait"),
    "tools side by side": tool_place("wait", "work"),
    "tool with progress": tool_place("steps"),
    "agent as a tool": agent_place,
    "listener": lambda *_: Place(listens_to=WorkOrderPlanned),
    "listener of text": lambda *_: Place(listens_to=TextDelta),
    "listener of progress": tool_place("tell", listens_to=ToolProgress),
}
OF_PROVIDER = ("provider", "stream", "close of a stream")
OWN = [each for each in PLACES if not each.startswith("listener")]
"""Places that are not the caller's own code."""
every_place = pytest.mark.parametrize("place", PLACES)
ODD, EVEN = [*PLACES][::2], [*PLACES][1::2]
WITH_STREAMS = [(each, at % 4 > 1 and each in OWN) for at, each in enumerate(PLACES)]
"""Each place, half of them in turns that are streamed."""


def in_soak(cases: Iterable[Any]) -> list[Any]:
    """Cases that only `make soak` runs."""
    return [pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=pytest.mark.soak) for each in cases]


@dataclass
class Attack:
    """A runtime with one session for each behaviour of the foreign code."""

    runtime: Runtime
    foreign: Foreign
    place: Place
    sessions: Mapping[str, str]
    found: dict[str, TurnResult | Exception] = field(default_factory=dict)
    """What came of the turn of each behaviour; a turn that was cancelled has nothing."""

    def stream(self, name: str) -> AsyncGenerator[TurnUpdate, None]:
        """The updates of a turn that meets the foreign code."""
        return self.runtime.supervisor().stream_turn(f"attack: {name}", session_id=self.sessions[name])

    async def turn(self, name: str, message: str, **options: Any) -> TurnResult:
        """A turn of a session."""
        return await self.runtime.supervisor().handle_turn(message, session_id=self.sessions[name], **options)

    async def attack(self, name: str, *, streamed: bool = False, **options: Any) -> None:
        """Runs the turn of a behaviour, by `stream_turn` or `handle_turn`."""
        try:
            if streamed:
                async with aclosing(self.stream(name)) as updates:
                    async for _ in updates:
                        pass
            else:
                self.found[name] = await self.turn(name, f"attack: {name}", listener=self._listener(name), **options)
        except Exception as error:  # noqa: BLE001  the test asserts which
            self.found[name] = error

    async def attack_all(self, **options: Any) -> None:
        """Runs the turns of all behaviours at once."""
        async with anyio.create_task_group() as tasks:
            for name in self.foreign.names:
                tasks.start_soon(partial(self.attack, name, **options))

    def _listener(self, name: str) -> UpdateListener:
        async def listen(update: TurnUpdate) -> None:
            if self.place.listens_to is not None and isinstance(update, self.place.listens_to):
                await self.foreign.meet(f": {name}")

        return listen

    def errors(self) -> dict[str, type]:
        return {name: type(each) for name, each in self.found.items()}

    async def check(self, *reasons: str) -> None:
        """Asserts that all turns of the attack were aborted for this reason, and that everybody is served as before."""
        aborted = await read_all(self.runtime.ledgers().ho2m, entry_type=events.TURN_ABORTED)
        assert [each.payload["reason"] for each in aborted] == [each for each in reasons for _ in self.foreign.names]
        assert await read_all(self.runtime.ledgers().ho2m, entry_type=events.DEGRADATION) == []
        assert not any(self.runtime.statistics()["open_circuits"].values())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._check_bystander)
            for name in self.foreign.names:
                tasks.start_soon(self._check_next, name)
        await self.runtime.drain()
        found = self.runtime.statistics()
        if reasons:
            assert {*await problems_of_vectors(self.runtime)} <= {None}  # nobody is without them because of others
        assert not any(lane.running for lanes in found["mailboxes"].values() for lane in lanes.values())

    async def _check_next(self, name: str) -> None:
        result = await self.turn(name, "again")
        assert (result.response, result.error) == ("echo: again", None)

    async def _check_bystander(self) -> None:
        result = await self.runtime.supervisor().handle_turn("hello", subject_id="bo")
        assert (result.response, result.error) == ("echo: hello", None)


async def problems_of_vectors(runtime: Runtime) -> list[str | None]:
    """Why projections lack vectors; None: they do not."""
    shown = await read_all(runtime.ledgers().context, entry_type="PROJECTION_COMPUTED")
    return [payload_of(each).get("similarity", {}).get("problem") for each in shown]


@asynccontextmanager
async def attacked(
    root: Path, where: str, *, without: str = "", limit_s: float = LONG_S, seal: bool = False
) -> AsyncIterator[Attack]:
    """A runtime whose foreign code stands in a place.

    Args:
        root: the directory of its ledgers
        where: the place
        without: a behaviour that is left out; "": none
        limit_s: the own time limit of that code
        seal: whether a subject can be erased
    """
    foreign = Foreign(without)
    place = PLACES[where](foreign, limit_s)
    config = scripted_config(
        root,
        ledger=QUICK.model_copy(update={"seal": seal}),
        limits={"max_restarts": 1, "shutdown_grace_s": 0.05},
        **{"classify": "rules", "overlap_policy": "replace", **place.settings},
    )
    lane = ProviderConfig(
        kind="offline", max_retries=0, breaker_failures=1, timeout_s=limit_s if where in OF_PROVIDER else LONG_S
    )
    config = config.model_copy(
        update={
            "router": RouterConfig(default_provider="foreign", providers={"foreign": lane}),
            "embeddings": EmbeddingsConfig(deadline_s=limit_s),
        }
    )
    providers = {"foreign": place.provider}
    async with open_runtime(config, providers=providers, tools=place.tools, embeddings=place.embeddings) as runtime:
        supervisor = runtime.supervisor()
        sessions = {name: await supervisor.start_session(subject_id="mallory") for name in foreign.names}
        found = Attack(runtime, foreign, place, sessions)
        if place.embeddings is not None:  # nothing is compared in the first turn of a session
            for name in foreign.names:
                await found.turn(name, "first")
        yield found


@every_place
async def test_turns_that_their_callers_cancel(tmp_path: Path, place: str) -> None:
    async with nothing_goes_wrong(), attacked(tmp_path, place) as attack:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attack.attack_all)
            await attack.foreign.wait_all_met()
            tasks.cancel_scope.cancel()
        assert attack.found == {}
        await attack.check("cancelled")


@on_asyncio
@pytest.mark.parametrize("place", [*ODD, *in_soak(EVEN)])
async def test_turns_whose_tasks_are_cancelled_natively(tmp_path: Path, place: str) -> None:
    """As `asyncio.timeout` does. asyncio cancels a task once, so code that takes no notice of that is not stopped at all."""
    async with nothing_goes_wrong(), attacked(tmp_path, place, without="no end") as attack:
        calls = [asyncio.ensure_future(attack.attack(name)) for name in attack.foreign.names]
        await attack.foreign.wait_all_met()
        for each in calls:
            each.cancel()
        await asyncio.wait(calls)
        assert [each.cancelled() for each in calls] == [True] * len(calls)
        await attack.check("cancelled")


@pytest.mark.parametrize("place", [*EVEN, *in_soak(ODD)])
async def test_turns_that_a_newer_message_replaces(tmp_path: Path, place: str) -> None:
    async with nothing_goes_wrong(), attacked(tmp_path, place) as attack:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attack.attack_all)
            await attack.foreign.wait_all_met()
            for name in attack.foreign.names:
                tasks.start_soon(attack.turn, name, "newer")
        assert attack.errors() == dict.fromkeys(attack.foreign.names, TurnReplaced)
        await attack.check("cancelled")


async def in_time(attempt: Callable[[float], Awaitable[Attack]]) -> None:
    """Attacks within a time limit, seconds, and within a longer one if the machine was so slow that not all turns came to the
    place."""
    for limit_s in (0.2, 1.0, 5.0):
        if (await attempt(limit_s)).foreign.are_all_met:
            return
    raise AssertionError("the machine is too slow for this test")


@pytest.mark.parametrize("place", [each for each in PLACES if "tool" not in each])
async def test_turns_whose_deadline_passes(tmp_path: Path, place: str) -> None:
    """Tools are stopped before their turn, as if by a limit of their own."""

    async def attempt(limit_s: float) -> Attack:
        async with nothing_goes_wrong(), attacked(tmp_path / f"{limit_s}", place) as attack:
            await attack.attack_all(deadline=limit_s)
            if attack.foreign.are_all_met:
                assert attack.errors() == dict.fromkeys(attack.foreign.names, TurnTimeout)
                await attack.check("timeout")
        return attack

    await in_time(attempt)


@pytest.mark.parametrize("place", [*OWN[::2], *in_soak(OWN[1::2])])
async def test_turns_whose_reader_leaves(tmp_path: Path, place: str) -> None:
    async with nothing_goes_wrong(), attacked(tmp_path, place) as attack:

        async def read(name: str) -> None:
            async with aclosing(attack.stream(name)) as updates:
                async for _ in updates:
                    await attack.foreign.wait_met(name)
                    break

        async with anyio.create_task_group() as tasks:
            for name in attack.foreign.names:
                tasks.start_soon(read, name)
        await attack.runtime.drain()  # a turn ends a little later than its reader
        await attack.check("cancelled")


@pytest.mark.parametrize(
    ("place", "streamed"),
    [*WITH_STREAMS, *in_soak((each, not streamed) for each, streamed in WITH_STREAMS if each in OWN)],
)
async def test_turns_whose_runtime_closes(tmp_path: Path, place: str, *, streamed: bool) -> None:
    """Those of `stream_turn` run in tasks of the runtime, those of `handle_turn` in tasks of their callers."""
    async with nothing_goes_wrong(), anyio.create_task_group() as tasks, attacked(tmp_path, place) as attack:
        tasks.start_soon(partial(attack.attack_all, streamed=streamed))
        await attack.foreign.wait_all_met()
    assert attack.errors() == dict.fromkeys(attack.foreign.names, TurnShutDown)
    async with attacked(tmp_path, place) as reopened:
        attack.runtime = reopened.runtime
        await attack.check("shutdown")


@pytest.mark.parametrize("place", ["provider", "embeddings", "tool", "listener"])
async def test_turns_whose_subject_is_erased(tmp_path: Path, place: str) -> None:
    async with nothing_goes_wrong(), attacked(tmp_path, place, seal=True) as attack:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attack.attack_all)
            await attack.foreign.wait_all_met()
            await attack.runtime.erase_subject("mallory")
        assert attack.errors() == dict.fromkeys(attack.foreign.names, SubjectErased)
        supervisor = attack.runtime.supervisor()
        attack.sessions = {name: await supervisor.start_session(subject_id="mallory") for name in attack.foreign.names}
        await attack.check("cancelled")


async def failed_attempts(attack: Attack) -> list[str]:
    assert attack.runtime.statistics()["open_circuits"]["foreign"]
    failed = await read_all(attack.runtime.ledgers().ho1m, entry_type=events.ATTEMPT_FAILED)
    return [payload_of(each)["reason"] for each in failed]


async def tool_errors(attack: Attack) -> list[str]:
    await attack.check()
    calls = await read_all(attack.runtime.ledgers().ho1m, entry_type=events.TOOL_CALL)
    errors = [payload_of(each)["error"] for each in calls if "error" in payload_of(each)]
    return ["timeout" if "did not end within its time limit" in each else each for each in errors]


async def nested_ends(attack: Attack) -> list[str]:
    assert await tool_errors(attack) == ["timeout"] * len(attack.foreign.names)
    aborted = await read_all(attack.runtime.ledgers("OTHER").ho2m, entry_type=events.TURN_ABORTED)
    return ["timeout" if payload_of(each)["reason"] == "cancelled" else payload_of(each)["reason"] for each in aborted]


async def missing_vectors(attack: Attack) -> list[str]:
    await attack.check()
    return ["timeout" for each in await problems_of_vectors(attack.runtime) if each == "DEADLINE"]


ON_RECORD = {
    **dict.fromkeys(OF_PROVIDER, failed_attempts),
    **{each: tool_errors for each in PLACES if "tool" in each},
    "agent as a tool": nested_ends,
    "embeddings": missing_vectors,
}
"""What stands on record of calls that reached their own time limit."""


@pytest.mark.parametrize("place", OWN)
async def test_calls_that_reach_their_own_time_limit(tmp_path: Path, place: str) -> None:
    """The limit is on record as the reason, whatever the code raised. Code that takes no notice may give a result after it."""

    async def attempt(limit_s: float) -> Attack:
        at = tmp_path / f"{limit_s}"
        async with nothing_goes_wrong(), attacked(at, place, without="no end", limit_s=limit_s) as attack:
            await attack.attack_all()
            if attack.foreign.are_all_met:
                assert await ON_RECORD[place](attack) == ["timeout" for _ in attack.foreign.names]
        return attack

    await in_time(attempt)
