"""What the acceptance tests stand on: real ledgers in a directory of their own, a scripted model or a scripted HO1.

`open_scripted` is a whole runtime around a scripted provider. `open_by_hand` is a supervisor alone, around an executor whose
behaviour the test writes. Both write real ledger files; what stands in them is read back through the ledger's own readers.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import anyio

from kitchener.actors.assembly import SharedResources
from kitchener.actors.sessions.active_session import SessionManager
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.actors.work.budget import TokenBudgeter
from kitchener.clock import Clock, SystemClock
from kitchener.config import HO2Config, LedgerConfig, LimitsConfig, ProviderConfig, RouterConfig, RuntimeConfig
from kitchener.errors import ProviderError
from kitchener.ids import path_part
from kitchener.ledger import LedgerClient, Ledgers, StoredEntry, open_ledgers
from kitchener.ledger.disk.file_ops import FileOps
from kitchener.records.entries import FinishReason
from kitchener.records.events import SEALING_CHANGED, SOURCE_RECORDED
from kitchener.records.index_keys import index_keys
from kitchener.records.outputs import Classification
from kitchener.records.prompt import PromptRequest, PromptResponse
from kitchener.records.turn import TurnResult
from kitchener.records.work_order import Cost, WorkOrder
from kitchener.runtime import Runtime, open_runtime
from kitchener.telemetry.port import Telemetry
from kitchener.testing import ScriptedProvider

QUESTION: Classification = {"speech_act": "question", "ambiguity": "low", "labels": {}, "confidence": 0.9}
AT = "2026-01-01T00:00:00.000000+00:00"
COST = Cost(input_tokens=7, output_tokens=3, llm_calls=1)

ROOTS_OWN = (SEALING_CHANGED, SOURCE_RECORDED)
QUICK = LedgerConfig(durability="os", linger_ms=0)
"""Commits that do not wait for company: most of these tests have one caller at a time."""


def echo(request: PromptRequest) -> Mapping[str, Any]:
    """A model's answers of which each reply can be told from every other: it repeats the message."""
    if request.wo_type == "classify":
        return QUESTION
    if request.wo_type == "verify":
        return {"decision": "accept", "reason": "echo"}
    return {"response_text": f"echo: {request.variables['user_message']}"}


class CutShort(ScriptedProvider):
    """A model whose replies that do not end with a full stop were cut at the limit of output tokens."""

    reason: FinishReason = "length"

    async def complete(self, request: PromptRequest) -> PromptResponse:
        response = await super().complete(request)
        has_more = request.wo_type not in ("classify", "verify") and not response.text.endswith(".")
        return replace(response, finish_reason=self.reason) if has_more else response


def failing_then_held(hold: "Hold") -> ScriptedProvider:
    """A model whose first reply fails, and whose second one is held."""
    failed: list[PromptRequest] = []

    def model(request: PromptRequest) -> Mapping[str, Any]:
        if request.wo_type == "synthesize" and not failed:
            failed.append(request)
            raise ProviderError("scripted", "timeout", "no answer within 120 s")
        return echo(request)

    async def gate(request: PromptRequest) -> None:
        if failed:
            await hold(request)

    return ScriptedProvider(model, gate=gate)


class Hold:
    """A provider's gate that stops the model calls for chosen messages until they are let go."""

    def __init__(self, *messages: str, wo_type: str | None = None) -> None:
        self._wo_type = wo_type
        self.arrived = {message: anyio.Event() for message in messages}
        self.released = {message: anyio.Event() for message in messages}

    async def __call__(self, request: PromptRequest) -> None:
        message = request.variables["user_message"]
        if message in self.arrived and self._wo_type in (None, request.wo_type):
            self.arrived[message].set()
            await self.released[message].wait()


Said = Mapping[str, Any] | BaseException | WorkOrder | None
Script = Callable[[WorkOrder], Said | Awaitable[Said]]


class ScriptedExecutor:
    """An HO1 whose behaviour the test writes, as a function of the work order. It keeps what it was given.

    The function's answer is the output; an exception is raised; a work order is returned as it is.
    """

    def __init__(self, script: Script | None = None) -> None:
        self.given: list[WorkOrder] = []
        self.script = script or fitting

    async def execute(self, work_order: WorkOrder) -> WorkOrder:
        self.given.append(work_order)
        said = self.script(work_order)
        if isinstance(said, Awaitable):
            said = await said
        if isinstance(said, BaseException):
            raise said
        if isinstance(said, WorkOrder):
            return said
        assert said is not None
        return work_order.executing().completed(dict(said), COST, AT)

    def types(self) -> list[str]:
        """The types of the work orders it was given, in order."""
        return [wo.wo_type for wo in self.given]


def fitting(wo: WorkOrder) -> Mapping[str, Any]:
    """An output that suits each kind of work order."""
    return {
        "classify": QUESTION,
        "tool_call": {"tool_id": wo.input_context.get("tool_id"), "result": "done"},
        "verify": {"decision": "accept", "reason": "fits"},
    }.get(wo.wo_type, {"response_text": f"re: {wo.input_context.get('user_message')}"})


def synthesizes(*outputs: Said) -> Script:
    """A script that gives synthesize work orders these outputs in turn, the last one for ever, and all others fitting ones."""
    left = list(outputs)

    def script(wo: WorkOrder) -> Said:
        if wo.wo_type != "synthesize":
            return fitting(wo)
        return left.pop(0) if len(left) > 1 else left[0]

    return script


@dataclass
class Stack:
    """A supervisor with what it was assembled from."""

    supervisor: HO2Supervisor
    ledgers: Ledgers
    executor: ScriptedExecutor

    async def turn(self, message: str = "hello", **options: Any) -> TurnResult:
        """One turn that ends soon, or the test does."""
        with anyio.fail_after(10):
            return await self.supervisor.handle_turn(message, **options)

    async def types(self, **filters: Any) -> list[str]:
        """The types of HO2m's entries."""
        return [entry.entry_type for entry in await read_all(self.ledgers.ho2m, **filters)]

    async def payloads(self, entry_type: str, **filters: Any) -> list[dict[str, Any]]:
        """The payloads of HO2m's entries of one type."""
        return [entry.payload for entry in await read_all(self.ledgers.ho2m, entry_type=entry_type, **filters)]


@asynccontextmanager
async def open_by_hand(
    root: Path,
    executor: ScriptedExecutor | None = None,
    *,
    agent_class: str = "ADMIN",
    budgeter: TokenBudgeter | None = None,
    clock: Clock | None = None,
    limits: LimitsConfig | None = None,
    settings: Mapping[str, Any] | None = None,
    disk: FileOps | None = None,
    **parts: Any,
) -> AsyncIterator[Stack]:
    """A supervisor assembled by hand around a scripted executor.

    Args:
        root: the directory of its ledgers
        executor: None: every work order gets a fitting output
        agent_class: the class it serves
        budgeter: None: a fresh one
        clock: None: the machine's
        limits: None: the defaults
        settings: fields of `HO2Config`
        disk: the file system under the ledgers, which then sync; None: the real one, and nobody waits for it
        **parts: further arguments of `HO2Supervisor`
    """
    executor, clock = executor or ScriptedExecutor(), clock or SystemClock()
    at = places(root, agent_class)
    opening = open_on(disk, at, clock) if disk is not None else open_ledgers(**at, config=QUICK, clock=clock)
    async with opening as ledgers:
        supervisor = HO2Supervisor(
            agent_class=agent_class,
            ho1_executor=executor,
            ledgers=ledgers,
            token_budgeter=budgeter or TokenBudgeter(),
            config=HO2Config(agent_class=agent_class, **(settings or {})),
            clock=clock,
            host=SharedResources(limits=limits or LimitsConfig()),
            **parts,
        )
        yield Stack(supervisor, ledgers, executor)


@asynccontextmanager
async def open_on(disk: FileOps, at: Mapping[str, Any], clock: Clock) -> AsyncIterator[Ledgers]:
    """The ledgers of ADMIN on a file system that the test has in its hand."""
    config = QUICK.model_copy(update={"durability": "fsync"})
    common: dict[str, Any] = {"config": config, "clock": clock, "index_dir": at["index_dir"], "file_ops": disk}
    async with (
        LedgerClient.open(at["ho1m"], ledger_id="HO1M:ADMIN", **common) as ho1m,
        LedgerClient.open(at["context"], ledger_id="CONTEXT:ADMIN", **common) as context,
        LedgerClient.open(at["ho2m"], ledger_id="HO2M:ADMIN", index_keys=index_keys, **common) as ho2m,
    ):
        yield Ledgers(ho1m, ho2m, context)


def places(root: Path, agent_class: str = "ADMIN") -> dict[str, Any]:
    """Where the ledgers of an agent class are, as `open_ledgers` takes it."""
    part = path_part(agent_class)
    return {
        "ho1m": root / "HO1" / part / "ho1m.jsonl",
        "ho2m": root / "HO2" / part / "ho2m.jsonl",
        "context": root / "HO2" / part / "context.jsonl",
        "agent_class": agent_class,
        "index_dir": root / "index",
    }


def scripted_config(
    root: Path,
    *,
    agents: Mapping[str, Mapping[str, Any]] | None = None,
    limits: Mapping[str, Any] | None = None,
    ledger: LedgerConfig = QUICK,
    has_classes: bool = True,
    lane: Mapping[str, Any] | None = None,
    **admin: Any,
) -> RuntimeConfig:
    """A configuration whose model is the provider `scripted`.

    Args:
        root: the directory of the ledgers
        agents: fields of `HO2Config` by agent class, besides ADMIN
        limits: fields of `LimitsConfig`
        ledger: how entries become durable
        has_classes: whether classes have tables; False: every class has the settings of `admin`
        lane: fields of the provider's `ProviderConfig`
        **admin: fields of ADMIN's `HO2Config`; it has all tools given to `open_runtime` where they do not say which
    """
    classes = {name: HO2Config(agent_class=name, **settings) for name, settings in (agents or {}).items()}
    # Retries come at once: what they wait for by default is tested with the gateway.
    provider = ProviderConfig(kind="offline", **{"backoff_initial_s": 0.01, **(lane or {})})
    return RuntimeConfig(
        plane_root=str(root),
        ledger=ledger,
        limits=LimitsConfig(**(limits or {})),
        router=RouterConfig(default_provider="scripted", providers={"scripted": provider}),
        agents={"ADMIN" if has_classes else "default": HO2Config(**{"tools": ("*",), **admin}), **classes},
    )


@asynccontextmanager
async def open_scripted(
    root: Path,
    provider: ScriptedProvider | None = None,
    *,
    tools: Sequence[Callable[..., Any]] = (),
    clock: Clock | None = None,
    admin_tools: tuple[str, ...] | None = ("*",),
    telemetry: Telemetry | None = None,
    **config: Any,
) -> AsyncIterator[Runtime]:
    """A runtime around a scripted model (None: the echo). `admin_tools`: its setting; `config` as for `scripted_config`."""
    providers = {"scripted": provider or ScriptedProvider(echo)}
    config["tools"] = admin_tools
    settings = scripted_config(root, **config)
    async with open_runtime(settings, providers=providers, tools=tools, clock=clock, telemetry=telemetry) as runtime:
        yield runtime


async def read_all(ledger: LedgerClient, **filters: Any) -> list[StoredEntry]:
    """The entries of a ledger that match, in order, without those that only say what is configured."""
    return [entry async for entry in ledger.read(**filters) if entry.entry_type not in ROOTS_OWN]


def portrait(session: SessionManager) -> dict[str, Any]:
    """All that a session knows of itself, for comparison with the same session elsewhere or later."""
    state = session.state
    known = {field.name: getattr(state, field.name) for field in fields(state) if field.name != "window"}
    return known | {
        "window": [(past.turn_id, past.user_message, past.response, past.fragment.content) for past in state.window]
    }


_LIVES = {
    ("WO_PLANNED", "WO_ABANDONED"),
    ("WO_PLANNED", "WO_DISPATCHED", "WO_COMPLETED"),
    ("WO_PLANNED", "WO_DISPATCHED", "WO_ABANDONED"),
    ("WO_PLANNED", "WO_DISPATCHED", "WO_FAILED"),
    ("WO_PLANNED", "WO_DISPATCHED", "WO_FAILED", "WO_SUPERSEDED"),
    ("WO_PLANNED", "WO_DISPATCHED", "WO_FAILED", "WO_ABANDONED"),
}


def check_lives(entries: Iterable[StoredEntry]) -> None:
    """Asserts that each work order in HO2m's entries had one whole, legal life, and none is still open."""
    lives: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        if entry.entry_type.startswith("WO_") and entry.entry_type not in ("WO_QUALITY_GATE", "WO_CHAIN_COMPLETE"):
            lives[entry.entity_id] = (*lives.get(entry.entity_id, ()), entry.entry_type)
    assert set(lives.values()) <= _LIVES


def types_of(entries: Iterable[StoredEntry]) -> list[str]:
    """The types of entries."""
    return [entry.entry_type for entry in entries]


async def outcome(call: Awaitable[TurnResult]) -> TurnResult | Exception:
    """What a call came to, its error as a value: for several calls that run at once."""
    try:
        return await call
    except Exception as error:  # noqa: BLE001  the test asserts which
        return error
