"""What a user sees of a setting in turns: who runs, who waits, who is refused, what is cut off, which files there are.

Each function runs one small scene under one value of a setting and returns what was seen, to be compared with another value.
Time stands still until a scene moves it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
import anyio.lowlevel
import trio.testing

from kitchener import ClientTool, FilePart, tool
from kitchener.actors import AttentionContext, ContextFragment
from kitchener.config import HO3MemoryConfig, LimitsConfig, ModelPrice, RuntimeConfig, SpendingConfig
from kitchener.errors import ActorStopped, ConfigError, KitchenerError, Overloaded
from kitchener.records.prompt import PromptRequest
from kitchener.records.turn import TurnResult
from kitchener.runtime import Runtime, open_runtime
from kitchener.runtime.loading import load_config
from kitchener.testing import ScriptedProvider, use_tool
from tests.acceptance.durability.test_durability import HeldDisk, complete_but_not_durable
from tests.acceptance.memory.memory_kit import EASY, lives, say, student
from tests.acceptance.sessions.test_nested_turns import Relay, passing_on
from tests.acceptance.sessions.test_shutdown import BrokenForExecutors
from tests.acceptance.stack import (
    QUESTION,
    QUICK,
    echo,
    open_by_hand,
    open_scripted,
    outcome,
    read_all,
    scripted_config,
)
from tests.actors.attention.test_retriever import Reader, retriever
from tests.actors.time_control import settle
from tests.shared.prompts import shown_text

T = TypeVar("T")

CLOCK: Final = trio.testing.MockClock()
"""The event loop's clock of these scenes; it moves by `jump` only."""
LATE_S: Final = 10.0
"""How far a scene moves the clock: beyond the short limits, and within the long ones."""


class Gate:
    """A provider's gate: counts the calls that come, and holds those of one kind until it opens."""

    def __init__(self, *wo_types: str) -> None:
        self.wo_types = wo_types or ("classify",)
        self.arrived = 0
        self.opened = anyio.Event()

    async def __call__(self, request: PromptRequest) -> None:
        if request.wo_type in self.wo_types:
            self.arrived += 1
            await self.opened.wait()


async def until(condition: Callable[[], bool]) -> None:
    """Returns once the condition holds, which may take worker threads."""
    while not condition():
        await anyio.lowlevel.checkpoint()


async def at_rest(look: Callable[[], T], is_whole: Callable[[T], bool]) -> T:
    """What is seen once it is whole and no longer changes."""
    while True:
        seen = look()
        await settle()
        if is_whole(seen) and look() == seen:
            return seen


async def pass_time() -> None:
    """Moves the clock, and lets everything happen whose time has come."""
    CLOCK.jump(LATE_S)
    await settle()


def told(end: object) -> str:
    """What a call came to."""
    if not isinstance(end, TurnResult):
        return type(end).__name__
    return end.error.kind if end.error is not None else "answered"


@asynccontextmanager
async def held(root: Path, count: int = 1, **config: Any) -> AsyncIterator[tuple[Runtime, Gate, list[str]]]:
    """A runtime in which so many turns are in the provider's hands, and at the end what each came to."""
    gate, ends = Gate(), list[str]()
    async with (
        open_scripted(root, ScriptedProvider(echo, gate=gate), **config) as runtime,
        anyio.create_task_group() as tasks,
    ):

        async def send(subject_id: str) -> None:
            ends.append(told(await outcome(runtime.supervisor().handle_turn("hello", subject_id=subject_id))))

        for number in range(count):
            tasks.start_soon(send, f"subject {number}")
        await until(lambda: gate.arrived == count)
        yield runtime, gate, ends
        gate.opened.set()


async def crowd(root: Path, calls: int = 64, **limits: int) -> Hashable:
    """Four turns at once, of a model that takes so many calls: who runs, and in which queue the others wait or are refused."""
    gate, refused = Gate(), list[Exception]()
    async with (
        open_scripted(root, ScriptedProvider(echo, gate=gate), limits=limits, lane={"max_concurrency": calls}) as runtime,
        anyio.create_task_group() as tasks,
    ):

        async def send(number: int) -> None:
            try:
                await runtime.supervisor().handle_turn("hello", subject_id=f"subject {number}")
            except Overloaded as error:
                refused.append(error)

        def places() -> tuple[int, ...]:
            found = runtime.statistics()
            lanes = [lane for lanes in found["mailboxes"].values() for lane in lanes.values()]
            queues = [count for lane in lanes for count in (lane.waiting, lane.asking_for_room)]
            return gate.arrived, found["waiting_turns"], len(refused), *queues

        for number in range(4):
            tasks.start_soon(send, number)
        seen = await at_rest(places, lambda found: sum(found) == 4)
        gate.opened.set()
    return seen


async def spent(root: Path, **limits: Any) -> Hashable:
    """A turn whose one call costs a little under a limit of spending: whether it is answered."""
    config = scripted_config(root, classify="rules")
    prices = {"scripted-1": ModelPrice(input_per_million=1.0, output_per_million=10.0)}
    router = config.router.model_copy(update={"prices": prices})
    config = config.model_copy(update={"router": router, "spending": SpendingConfig(**limits)})
    async with open_runtime(config, providers={"scripted": ScriptedProvider(echo)}) as runtime:
        return (await runtime.supervisor().handle_turn("hello")).degraded


async def cut_off(root: Path, **config: Any) -> Hashable:
    """A turn whose model is silent for a while."""
    async with held(root, **config) as (_, gate, ends):
        await pass_time()
        gate.opened.set()
        await until(lambda: bool(ends))
    return ends[0]


async def kept_waiting(root: Path, **config: Any) -> Hashable:
    """A turn that waits for a slot for a while."""
    async with held(root, limits={"max_running_turns": 1}, **config) as (runtime, gate, _), anyio.create_task_group() as tasks:
        ends = []

        async def send() -> None:
            ends.append(told(await outcome(runtime.supervisor().handle_turn("me too", subject_id="bo"))))

        tasks.start_soon(send)
        await until(lambda: bool(runtime.statistics()["waiting_turns"]))
        await pass_time()
        gate.opened.set()
    return tuple(ends)


async def overlapping(root: Path, **config: Any) -> Hashable:
    """Four messages for one session while its model is silent."""
    gate, ends = Gate(), list[str]()
    async with open_scripted(root, ScriptedProvider(echo, gate=gate), **config) as runtime:
        session_id = await runtime.supervisor().start_session()
        async with anyio.create_task_group() as tasks:

            async def send() -> None:
                ends.append(told(await outcome(runtime.supervisor().handle_turn("hello", session_id=session_id))))

            tasks.start_soon(send)
            await until(lambda: gate.arrived == 1)
            for _ in range(3):
                tasks.start_soon(send)
            await settle()
            gate.opened.set()
    return tuple(sorted(ends))


async def shut_down(root: Path, **limits: float) -> Hashable:
    """A runtime that closes while a turn's model is silent for a while."""
    gate, ends = Gate(), list[str]()
    async with (
        anyio.create_task_group() as tasks,
        open_scripted(root, ScriptedProvider(echo, gate=gate), limits=limits) as runtime,
    ):

        async def send() -> None:
            ends.append(told(await outcome(runtime.supervisor().handle_turn("hello"))))

        async def later() -> None:
            await settle()
            await pass_time()
            gate.opened.set()

        tasks.start_soon(send)
        await until(lambda: gate.arrived == 1)
        tasks.start_soon(later)
    return tuple(ends)


async def given_up(root: Path, **limits: float) -> Hashable:
    """A turn past its deadline whose records the disk does not take for a while."""
    disk, ends = HeldDisk(), list[str]()
    async with open_by_hand(root, disk=disk, limits=LimitsConfig.model_validate(limits)) as stack:
        session_id = await stack.supervisor.start_session()

        async def send() -> None:
            ends.append(told(await outcome(stack.supervisor.handle_turn("hello", session_id=session_id, deadline=LATE_S))))

        async with anyio.create_task_group() as tasks:
            with disk.held():
                tasks.start_soon(send)
                await complete_but_not_durable(stack, session_id)
                await pass_time()
                await pass_time()
    return tuple(ends)


async def passivated(root: Path, **config: Any) -> Hashable:
    """Whether a session that was idle for a while, and is asked for after another one, is the same object."""
    async with open_scripted(root, **config) as runtime:
        supervisor = runtime.supervisor()
        one, two = [await supervisor.start_session() for _ in range(2)]
        first = await supervisor.session(one)
        await pass_time()
        await supervisor.session(two)
        return await supervisor.session(one) is first


async def passivated_by_text(root: Path, **config: Any) -> Hashable:
    """Whether a session that said something, and is asked for after another one has, is the same object."""
    async with open_scripted(root, **config) as runtime:
        supervisor = runtime.supervisor()
        one, two = [(await supervisor.handle_turn("hello")).session_id for _ in range(2)]
        first = await supervisor.session(one)
        await supervisor.handle_turn("hello again", session_id=two)
        return await supervisor.session(one) is first


async def nested(root: Path, **limits: int) -> Hashable:
    """A turn whose tool sends a message to another session."""
    relay = Relay()
    async with open_scripted(root, ScriptedProvider(passing_on), tools=[relay.tool], limits=limits) as runtime:
        relay.runtime = runtime
        await runtime.supervisor().handle_turn("go hello")
    return tuple(map(told, relay.came_to))


async def failing(root: Path, **limits: int) -> Hashable:
    """Turns of several subjects with an executor that has a bug."""
    try:
        async with open_scripted(root, clock=BrokenForExecutors(), limits=limits) as runtime:
            for number in range(3):
                await outcome(runtime.supervisor().handle_turn("hello", subject_id=f"subject {number}"))
    except ActorStopped:
        return "stopped"
    return "runs"


async def asked(root: Path, message: str = "hello", agent_class: str = "ADMIN", **config: Any) -> Hashable:
    """One message, and what it came to."""
    try:
        async with open_scripted(root, **config) as runtime:
            return told(await outcome(runtime.supervisor(agent_class).handle_turn(message)))
    except KitchenerError as error:
        return type(error).__name__


async def attached(root: Path, **config: Any) -> Hashable:
    """A message with a file of five bytes, and a second one: what they came to, and which bytes the model got."""
    provider = ScriptedProvider(echo)
    async with open_scripted(root, provider, **config) as runtime:
        supervisor = runtime.supervisor()
        session_id = await supervisor.start_session()
        first = await outcome(supervisor.handle_turn("look", session_id=session_id, parts=[FilePart(b"notes")]))
        second = await outcome(supervisor.handle_turn("again", session_id=session_id))
    got = [part.data for request in provider.requests for each in request.messages for part in each.parts]
    return told(first), told(second), tuple(got)


async def brought_tools(root: Path, **config: Any) -> Hashable:
    """A message that brings two tools of more than a kilobyte, of which the model calls one: what it is told of the output."""
    provider = ScriptedProvider(
        lambda asked: QUESTION if asked.wo_type == "classify" else use_tool("look") if asked.tools else {"response_text": "x"}
    )
    tools = [ClientTool("look", "Looks."), ClientTool("paint", "Paints. " * 140)]
    async with open_scripted(root, provider, tool_turn_limit=1, **config) as runtime:
        supervisor = runtime.supervisor()
        asked = await outcome(supervisor.handle_turn("look", client_tools=tools))
        if isinstance(asked, TurnResult) and asked.client_calls:
            await supervisor.answer_client_calls({asked.client_calls[0].call_id: "green"})
            calls = await read_all(runtime.ledgers().ho1m, entry_type="TOOL_CALL")
            return tuple(each.payload.get("untrusted") for each in calls)
    return told(asked)


async def spoken(root: Path, **config: Any) -> Hashable:
    """Three people say much the same, and little of it fits: what a question that names one of them is shown of it."""
    provider = ScriptedProvider(echo)
    async with open_scripted(root, provider, context_mode="enforce", intent_mode="bridge", **config) as runtime:
        supervisor = runtime.supervisor()
        session_id = await supervisor.start_session()
        for speaker in ("Bo", "Ada", "Cy", "Bo", "Cy"):
            await supervisor.handle_turn("the choir sings on Monday", session_id=session_id, speaker=speaker)
        await supervisor.handle_turn("when does Ada sing in the choir?", session_id=session_id)
    return shown_text(provider.requests[-1].variables["assembled_context"])


async def named(root: Path, agent_class: str) -> Hashable:
    """A settings file whose table has one name, and says another."""
    path = root / "kitchener.toml"
    path.write_text(f'[agents."RESIDENT:bo"]\nagent_class = "{agent_class}"\n')
    try:
        return len(load_config(path, environ={}).config.agents)
    except ConfigError:
        return "refused"


async def streamed(root: Path, **limits: int) -> Hashable:
    """How far a turn with a reply of many words has come when its reader stops."""
    reply = " ".join(f"word{number}" for number in range(60))
    async with open_scripted(root, ScriptedProvider.replies(reply), limits=limits) as runtime:
        seen, found = 0, 0
        async for _ in runtime.supervisor().stream_turn("hello"):
            seen += 1
            if seen == 10:
                await settle()
                boxes = runtime.statistics()["mailboxes"]
                found = boxes["gateway"]["scripted"].running
    return found


async def tool_run(root: Path, seconds: float = 0.0, **config: Any) -> Hashable:
    """A command whose tool takes so long and returns a long text: what the executor's ledger has of it."""
    begun, ended = anyio.Event(), anyio.Event()

    @tool(read_only=True)
    async def dig() -> str:
        """Digs."""
        begun.set()
        if seconds:
            await ended.wait()
        return "x" * 1_000

    def model(request: PromptRequest) -> Any:
        if request.wo_type == "classify":
            return {**QUESTION, "speech_act": "command", "tool_request": {"tool_id": "dig", "arguments": {}}}
        return echo(request)

    async with open_scripted(root, ScriptedProvider(model), tools=[dig], **config) as runtime:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.supervisor().handle_turn, "dig")
            await begun.wait()
            if seconds:
                await pass_time()
            ended.set()
        (entry,) = await read_all(runtime.ledgers().ho1m, entry_type="TOOL_CALL")
    return len(entry.body)


async def two_tool_runs(root: Path, **limits: Any) -> Hashable:
    """Two calls of one tool in a round: how many ran at the same time, and how many were refused."""
    running, most = 0, 0

    @tool(read_only=True)
    async def dig(place: int) -> str:
        """Digs."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await settle()
        running -= 1
        return "dug"

    def model(request: PromptRequest) -> Any:
        if request.wo_type == "synthesize" and request.messages[-1].role != "tool":
            return (use_tool("dig", place=1), use_tool("dig", place=2))
        return echo(request)

    async with open_scripted(root, ScriptedProvider(model), tools=[dig], tool_limits={"dig": limits}) as runtime:
        await runtime.supervisor().handle_turn("dig")
        found = await read_all(runtime.ledgers().ho1m, entry_type="TOOL_CALL")
    return most, sum("error" in entry.payload for entry in found)


async def gathered(timeout_ms: int) -> Hashable:
    """Attention over a source that does not answer for a while: what cut it."""
    answered = anyio.Event()

    class Slow(Reader):
        async def _read(self, what: str, *arguments: Any) -> Sequence[ContextFragment]:
            await answered.wait()
            return await super()._read(what, *arguments)

    found: list[AttentionContext] = []
    attention = retriever(Slow(), {"timeout_ms": 10_000_000}, attention_timeout_ms=timeout_ms)

    async def scan() -> None:
        found.append(await attention.horizontal_scan("SES-0a1b2c3d", "x"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(scan)
        await settle()
        await pass_time()
        answered.set()
    return found[0].budget_used.cut_by


async def learning(root: Path, subjects: int = 3, **config: Any) -> Hashable:
    """Turns of so many subjects that each open a gate, with a model that is silent about lessons: who learns, who waits."""
    gate = Gate("consolidate")
    async with open_scripted(root, student(gate=gate), **{**EASY, **config}) as runtime:
        for number in range(subjects):
            await say(runtime, subject_id=f"subject {number}")
        pending = runtime.statistics()["pending_consolidations"]

        def lanes() -> tuple[int, int]:
            lane = runtime.statistics()["mailboxes"]["ADMIN"]["background"]
            return lane.running, lane.waiting

        seen = await at_rest(lanes, lambda found: sum(found) == pending)
        gate.opened.set()
        await runtime.drain()
    return pending, seen


async def slow_lesson(root: Path, **config: Any) -> Hashable:
    """A consolidation whose model is silent for a while."""
    gate = Gate("consolidate")
    async with open_scripted(root, student(gate=gate), **EASY, **config) as runtime:
        await say(runtime)
        await until(lambda: gate.arrived == 1)
        await pass_time()
        gate.opened.set()
        await runtime.drain()
    (entries,) = lives(root).values()
    return entries[-1]


async def memory_of(root: Path, **settings: Any) -> Hashable:
    """Whether a program has a memory although no agent class uses one, and which kinds of signals it takes."""
    config = RuntimeConfig(plane_root=str(root), ledger=QUICK, memory=HO3MemoryConfig(**settings))
    async with open_runtime(config) as runtime:
        try:
            await runtime.memory().log_signal("mood:happy", "SES-0a1b2c3d")
        except KitchenerError as error:
            return type(error).__name__
    return "logged"


async def files(root: Path, place: str = "", **config: Any) -> Hashable:
    """Which ledgers and keyrings there are after a turn, and whether the words are readable; `{}` in a value is the place."""

    def placed(settings: Any) -> Any:
        if isinstance(settings, dict):
            return {key: placed(value) for key, value in settings.items()}
        return settings.format(root / place) if isinstance(settings, str) else settings

    settings = {"plane_root": str(root / "plane"), "ledger": {"durability": "os"}, "router": {"default_provider": "scripted"}}
    loaded = RuntimeConfig.model_validate(placed({**settings, **config}))
    async with open_runtime(loaded, providers={"scripted": ScriptedProvider(echo)}) as runtime:
        await runtime.supervisor().handle_turn("a word of mine")
    found = sorted(root.rglob("*.jsonl"))
    spoken = any("a word of mine" in path.read_text() for path in found)
    keyrings = sorted({path.parent for path in root.rglob("*.key")})
    return tuple(str(path.relative_to(root)) for path in (*found, *keyrings)), spoken


Observer = Callable[[Path, Any], Awaitable[Hashable]]


def with_settings(observe: Callable[..., Awaitable[Hashable]], key: str, **others: Any) -> Observer:
    """The scene under one value of a setting of the scene's keywords."""
    return lambda root, value: observe(root, **{key: value}, **others)
