"""What an executor promises holds called directly and behind a mailbox alike; explained in docs/actors.md."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener import tool
from kitchener.actors.executor.executor import HO1Executor
from kitchener.actors.executor.executor_host import HostedExecutor
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.tools.tool import Tool
from kitchener.clock import SystemClock
from kitchener.config import HO2Config, LedgerConfig, RouterConfig
from kitchener.errors import InvalidTransition, PromptError, ProviderError
from kitchener.gateway import LLMGateway
from kitchener.lanes.calling_chain import CALLING_CHAIN, calling_chain
from kitchener.lanes.mailbox import BACKGROUND, INTERACTIVE
from kitchener.lanes.worker_lane import LaneLimits
from kitchener.ledger import Ledgers, open_ledgers
from kitchener.records.prompt import PromptRequest, Provider
from kitchener.records.turn import TextDelta, TurnUpdate, UpdateListener
from kitchener.records.work_order import HO1ExecutorProtocol, WorkOrder
from kitchener.testing import ScriptedProvider
from tests.actors.executor.executor_kit import CLASSIFY, LIBRARY, SYNTHESIZE, work_order
from tests.actors.time_control import settle, settle_then

BOUNDS: dict[str, Any] = {
    "name": "the host",
    "lanes": {INTERACTIVE: LaneLimits(concurrency=8, capacity=8), BACKGROUND: LaneLimits(concurrency=1, capacity=8)},
    "max_restarts": 100,
    "restart_window_s": 60.0,
    "abort_grace_s": 60.0,
}


@pytest.fixture(params=["direct", "behind a mailbox"])
def host(request: pytest.FixtureRequest) -> str:
    """How the component is called."""
    kind: str = request.param
    return kind


@dataclass
class Bench:
    """An executor behind its host, and what is to be seen of its work."""

    executor: HO1ExecutorProtocol
    ledgers: Ledgers
    listeners: dict[str, UpdateListener]

    async def types(self) -> list[str]:
        return [entry.entry_type async for entry in self.ledgers.ho1m.read()]


def echo(request: PromptRequest) -> Mapping[str, Any]:
    if request.wo_type == "classify":
        return {"speech_act": request.variables["user_message"], "ambiguity": "low"}
    return {"response_text": f"echo: {request.variables['user_message']}"}


@asynccontextmanager
async def open_bench(
    host: str, path: Path, provider: Provider | None = None, *, tools: tuple[Tool[..., Any], ...] = ()
) -> AsyncIterator[Bench]:
    """The real executor over real ledgers and a scripted model."""
    listeners: dict[str, UpdateListener] = {}
    providers = {"p": provider or ScriptedProvider(echo)}
    async with (
        LLMGateway(RouterConfig(default_provider="p"), providers).open() as gateway,
        open_ledgers(
            ho1m=path / "ho1m.jsonl",
            ho2m=path / "ho2m.jsonl",
            context=path / "context.jsonl",
            agent_class="ADMIN",
            config=LedgerConfig(durability="os", linger_ms=0),
        ) as ledgers,
    ):
        executor = HO1Executor(
            ledgers=ledgers,
            gateway=gateway,
            prompts=LIBRARY,
            tools=ToolRegistry(tools),
            clock=SystemClock(),
            config=HO2Config(),
            listeners=listeners,
        )
        with anyio.fail_after(10):
            if host == "direct":
                yield Bench(executor, ledgers, listeners)
                return
            mailbox = HostedExecutor.hosting(executor, **BOUNDS)
            async with mailbox.open():
                yield Bench(HostedExecutor(mailbox), ledgers, listeners)
                await settle()
                assert all((lane.running, lane.waiting) == (0, 0) for lane in mailbox.statistics().values())


def classify(message: str) -> WorkOrder:
    return work_order("classify", {**CLASSIFY, "user_message": message})


async def test_a_dispatched_work_order_comes_back_completed_and_recorded(host: str, tmp_path: Path) -> None:
    async with open_bench(host, tmp_path) as bench:
        given = classify("hello")
        done = await bench.executor.execute(given)
        assert (done.state, done.output_result) == ("completed", {"speech_act": "hello", "ambiguity": "low"})
        assert (done.wo_id, done.input_context) == (given.wo_id, given.input_context)
        assert done.cost.llm_calls == 1
        assert await bench.types() == ["LLM_CALL"]


async def test_a_model_that_fails_is_a_result(host: str, tmp_path: Path) -> None:
    async with open_bench(host, tmp_path, ScriptedProvider([ProviderError("p", "refused", "not today")])) as bench:
        done = await bench.executor.execute(classify("hello"))
        assert done.state == "failed"
        assert done.error is not None
        assert (done.error.reason, done.error.provider_reason) == ("PROVIDER", "refused")
        assert (await bench.types())[-1] == "WO_FAILED"


async def test_a_tool_that_fails_is_a_result(host: str, tmp_path: Path) -> None:
    @tool(read_only=True)
    def broken() -> str:
        """Always fails."""
        raise RuntimeError("out of order")

    async with open_bench(host, tmp_path, tools=(broken,)) as bench:
        done = await bench.executor.execute(work_order("tool_call", {"tool_id": "broken"}, allowed_tools=("broken",)))
        assert done.error is not None
        assert (done.state, done.error.reason) == ("failed", "TOOL")


async def test_an_executor_that_cannot_do_its_work_raises(host: str, tmp_path: Path) -> None:
    async with open_bench(host, tmp_path, ScriptedProvider([])) as bench:
        with pytest.raises(InvalidTransition):
            await bench.executor.execute(classify("hello").abandoned())
        with pytest.raises(PromptError):
            await bench.executor.execute(work_order("classify", prompt_contract_id="PRC-NONE-001"))


async def test_work_orders_run_side_by_side_and_each_gets_its_own_output(host: str, tmp_path: Path) -> None:
    everybody_is_here = anyio.Event()
    arrived: list[str] = []

    async def gate(request: PromptRequest) -> None:
        arrived.append(str(request.variables["user_message"]))
        if len(arrived) == 6:
            everybody_is_here.set()
        await everybody_is_here.wait()

    outputs: dict[str, Any] = {}
    async with open_bench(host, tmp_path, ScriptedProvider(echo, gate=gate)) as bench:

        async def run(message: str) -> None:
            outputs[message] = (await bench.executor.execute(classify(message))).output_result

        async with anyio.create_task_group() as tasks:
            for n in range(6):
                tasks.start_soon(run, f"m{n}")
    assert outputs == {f"m{n}": {"speech_act": f"m{n}", "ambiguity": "low"} for n in range(6)}


async def test_cancelling_the_caller_stops_its_model_call_and_no_other(host: str, tmp_path: Path) -> None:
    gates = {message: anyio.Event() for message in ("held", "other")}
    cancelled: list[str] = []

    async def gate(request: PromptRequest) -> None:
        message = str(request.variables["user_message"])
        try:
            await gates[message].wait()
        except anyio.get_cancelled_exc_class():
            cancelled.append(message)
            raise

    async with open_bench(host, tmp_path, ScriptedProvider(echo, gate=gate)) as bench, anyio.create_task_group() as tasks:
        done: list[WorkOrder] = []

        async def run_other() -> None:
            done.append(await bench.executor.execute(classify("other")))

        tasks.start_soon(run_other)
        with anyio.CancelScope() as scope:
            tasks.start_soon(settle_then, scope.cancel)
            await bench.executor.execute(classify("held"))
        assert scope.cancelled_caught

        assert cancelled == ["held"]
        gates["other"].set()
        await settle()
        assert [wo.state for wo in done] == ["completed"]
        gates["held"].set()
        assert (await bench.executor.execute(classify("held"))).state == "completed"


async def test_a_tool_sees_the_callers_chain_of_sessions(host: str, tmp_path: Path) -> None:
    seen: list[tuple[str, ...]] = []

    @tool(read_only=True)
    async def look() -> str:
        """Looks at its calling chain."""
        seen.append(calling_chain())
        return "looked"

    async with open_bench(host, tmp_path, tools=(look,)) as bench:
        for chain in [("SES-0000000a",), ("SES-0000000a", "SES-0000000b"), ()]:
            token = CALLING_CHAIN.set(chain)
            done = await bench.executor.execute(work_order("tool_call", {"tool_id": "look"}, allowed_tools=("look",)))
            CALLING_CHAIN.reset(token)
            assert done.state == "completed"
    assert seen == [("SES-0000000a",), ("SES-0000000a", "SES-0000000b"), ()]


async def test_a_listener_hears_the_reply_while_it_is_made(host: str, tmp_path: Path) -> None:
    updates: list[TurnUpdate] = []

    async def listen(update: TurnUpdate) -> None:
        updates.append(update)

    async with open_bench(host, tmp_path) as bench:
        wo = work_order("synthesize", {**SYNTHESIZE, "user_message": "one two three"})
        bench.listeners[wo.wo_id] = listen
        done = await bench.executor.execute(wo)
    assert done.output_result == {"response_text": "echo: one two three"}
    assert "".join(update.text for update in updates if isinstance(update, TextDelta)) == "echo: one two three"
