"""What the acceptance tests of long-term memory stand on: a model that draws lessons, and what stands in its files.

A few of its gates are set so low that one turn opens them; what a test asserts of a ledger it reads from the file itself.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from kitchener.actors.assembly import SharedResources
from kitchener.actors.executor.executor import HO1Executor
from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.work.budget import TokenBudgeter
from kitchener.clock import Clock, SystemClock
from kitchener.config import HO2Config, HO3MemoryConfig, RouterConfig
from kitchener.gateway import LLMGateway
from kitchener.ids import memory_namespace
from kitchener.ledger import Ledgers, open_ledgers, verify_file
from kitchener.memory import HO3Memory
from kitchener.records.prompt import PromptRequest
from kitchener.records.turn import TurnResult
from kitchener.runtime import Runtime
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import QUESTION, QUICK, Said, ScriptedExecutor, Stack, fitting, places

LESSON: Mapping[str, Any] = {
    "bias": "Comes back to packages.",
    "category": "topic_affinity",
    "salience_weight": 0.8,
    "decay_modifier": 0.9,
    "labels": {"domain": [], "task": []},
    "context_line": "Often asks about packages.",
}
"""What a model makes of any signal; without labels, so it speaks in every turn."""

QUESTIONS = "intent:question"
"""The signal that each message gives, being a question."""

ADA = memory_namespace("ADMIN", "ada")

EASY: Mapping[str, Any] = {"ho3_enabled": True, "ho3_gate_count_threshold": 1, "ho3_gate_session_threshold": 1}
"""One turn opens a gate."""

MANUAL: Mapping[str, Any] = {**EASY, "consolidation": "manual"}
"""And the test decides when it is learned from."""

Answer = Mapping[str, Any] | str | BaseException
Teaching = Answer | Callable[[PromptRequest], Answer]


def student(
    lesson: Teaching = LESSON,
    classification: Mapping[str, Any] | Callable[[str], Mapping[str, Any]] = QUESTION,
    *,
    gate: Callable[[PromptRequest], Awaitable[object]] | None = None,
    **options: Any,
) -> ScriptedProvider:
    """A model that repeats messages and draws the given lesson from any signal.

    Args:
        lesson: its answer to a consolidation, or a function of the request
        classification: of every message, or a function of the message
        gate: awaited with each request before it is answered
        **options: as for `ScriptedProvider`
    """

    def answer(request: PromptRequest) -> Answer:
        if request.wo_type == "consolidate":
            return lesson(request) if callable(lesson) else lesson
        message = request.variables["user_message"]
        if request.wo_type == "classify":
            return classification(message) if callable(classification) else classification
        return {"response_text": f"echo: {message}"}

    return ScriptedProvider(answer, gate=gate, **options)


def asked(provider: ScriptedProvider, wo_type: str = "consolidate") -> list[PromptRequest]:
    """What a model was asked of one kind, in order."""
    return [request for request in provider.requests if request.wo_type == wo_type]


def knows(*lines: str) -> Callable[[PromptRequest], bool]:
    """Whether a request shows exactly these learned lines."""

    def check(request: PromptRequest) -> bool:
        return tuple(request.variables["assembled_context"].get("ho3_biases", ())) == lines

    return check


class Pause:
    """A provider's gate that stops every consolidation until it is let go."""

    def __init__(self) -> None:
        self.arrived, self.released = anyio.Event(), anyio.Event()

    async def __call__(self, request: PromptRequest) -> None:
        if request.wo_type == "consolidate":
            self.arrived.set()
            await self.released.wait()


async def say(runtime: Runtime, message: str = "hello", *, subject_id: str = "ada", agent_class: str = "ADMIN") -> TurnResult:
    """One turn in a session of its own, that ends soon."""
    supervisor = runtime.supervisor(agent_class)
    with anyio.fail_after(20):
        session_id = await supervisor.start_session(subject_id=subject_id)
        return await supervisor.handle_turn(message, session_id=session_id)


def memory_entries(root: Path, name: str) -> list[dict[str, Any]]:
    """The entries of `signals` or `overlays` as they stand in the file; none where there is no file."""
    path = root / "HOT" / "memory" / f"{name}.jsonl"
    return [json.loads(line)["entry"] for line in path.read_text().splitlines()] if path.exists() else []


def signals(root: Path) -> list[dict[str, Any]]:
    """What was logged of signals, one payload for each event; those of a turn in the order in which a turn gives them."""
    logged = (entry["payload"] for entry in memory_entries(root, "signals"))
    return [each for payload in logged for each in (events_of(payload) if "signals" in payload else [payload])]


def events_of(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The events of a turn's entry."""
    given = sorted(payload["signals"].items(), key=lambda each: KINDS.index(each[1].partition(":")[0]))
    return [{**payload, "event_id": event_id, "signal_id": signal_id} for event_id, signal_id in given]


KINDS = ("intent", "domain", "task", "tool", "outcome")
"""The kinds of signals, in the order in which a turn gives them."""


def signal_ids(root: Path) -> list[str]:
    """The signals logged, in order."""
    return [payload["signal_id"] for payload in signals(root)]


def overlays(root: Path) -> list[dict[str, Any]]:
    """What was learned."""
    return [entry["payload"] for entry in memory_entries(root, "overlays") if entry["entry_type"] == "HO3_OVERLAY"]


def ledger_entries(root: Path, ledger: str = "ho2m", agent_class: str = "ADMIN") -> list[dict[str, Any]]:
    """The entries of HO1m or HO2m as they stand in the file."""
    path: Path = places(root, agent_class)[ledger]
    return [json.loads(line)["entry"] for line in path.read_text().splitlines()]


def lives(root: Path) -> dict[str, list[str]]:
    """What HO2m says of each consolidation's work order, by its id."""
    found: dict[str, list[str]] = {}
    for entry in ledger_entries(root):
        if entry["entity_id"].startswith("WO-CONS-"):
            told = entry["entry_type"]
            found.setdefault(entry["entity_id"], []).append(
                f"{told}:{entry['payload']['reason']}" if "reason" in entry["payload"] else told
            )
    return found


def check_all(root: Path) -> None:
    """Every ledger under a root verifies."""
    paths = sorted(root.rglob("*.jsonl"))
    assert paths
    assert [path.name for path in paths if not verify_file(path).ok] == []


def learning(lesson: Said = None) -> Callable[..., Said]:
    """A script for an HO1: fitting outputs, and the lesson for consolidations."""

    def script(wo: Any) -> Said:
        return (lesson if lesson is not None else LESSON) if wo.wo_type == "consolidate" else fitting(wo)

    return script


@asynccontextmanager
async def open_remembering(
    root: Path,
    executor: ScriptedExecutor | None = None,
    *,
    provider: ScriptedProvider | None = None,
    memory_settings: Mapping[str, Any] | None = None,
    wrap: Callable[[HO3Memory], Any] = lambda memory: memory,
    clock: Clock | None = None,
    host: SharedResources | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[Stack, Any]]:
    """A supervisor assembled by hand with a long-term memory whose gates one turn opens.

    Args:
        root: the directory of all ledgers
        executor: None: fitting outputs, and the lesson
        provider: a model behind a real HO1, instead of an executor
        memory_settings: fields of `HO3MemoryConfig`
        wrap: what stands between the supervisor and the memory
        clock: None: the machine's
        host: None: no runtime
        **settings: fields of `HO2Config`
    """
    scripted, clock = executor or ScriptedExecutor(learning()), clock or SystemClock()
    config = HO2Config(**{"ho3_enabled": True, **settings})
    thresholds = {"gate_count_threshold": 1, "gate_session_threshold": 1, **(memory_settings or {})}
    async with (
        HO3Memory.open(root, HO3MemoryConfig(**thresholds), clock=clock, ledger_config=QUICK) as memory,
        open_ledgers(**places(root), config=QUICK, clock=clock, also=memory.ledgers) as ledgers,
        LLMGateway(RouterConfig(default_provider="scripted"), {"scripted": provider or ScriptedProvider([])}).open() as gateway,
    ):
        known = wrap(memory)
        supervisor = HO2Supervisor(
            agent_class="ADMIN",
            ho1_executor=scripted if provider is None else real_executor(gateway, ledgers, config, clock),
            ledgers=ledgers,
            token_budgeter=TokenBudgeter(),
            config=config,
            ho3_memory=known,
            clock=clock,
            host=host,
        )
        yield Stack(supervisor, ledgers, scripted), known


def real_executor(gateway: LLMGateway, ledgers: Ledgers, config: HO2Config, clock: Clock) -> HO1Executor:
    """HO1 as a runtime has it, without a mailbox before it, so that what it does is in its ledger."""
    return HO1Executor(
        ledgers=ledgers,
        gateway=gateway,
        prompts=PromptLibrary.load(),
        tools=ToolRegistry(),
        clock=clock,
        config=config,
    )


class Around:
    """A memory with something between it and its user: everything goes through, unless a subclass says otherwise."""

    def __init__(self, memory: HO3Memory) -> None:
        self.memory = memory

    def __getattr__(self, name: str) -> Any:
        return getattr(self.memory, name)


class Stopping(Around):
    """A memory that does something around the moment in which what was learned is written."""

    def __init__(self, memory: HO3Memory) -> None:
        super().__init__(memory)
        self.before: Callable[[], Any] | None = None
        self.after: Callable[[], Any] | None = None

    async def log_overlay(self, *args: Any, **options: Any) -> str:
        """Does what it is told before and after."""
        if self.before is not None:
            await self.before()
        overlay_id = await self.memory.log_overlay(*args, **options)
        if self.after is not None:
            await self.after()
        return overlay_id
