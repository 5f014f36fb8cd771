"""Builds one agent class of a runtime: its executor behind a mailbox, its supervisor, and the task that holds its ledgers.

The runtime creates one `Agent` for each configured class, and for other classes on first use. An agent knows no other agent;
`RuntimeParts` has the parts that they share. Explained in `docs/runtime.md`.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Final

import anyio
from anyio.abc import TaskGroup

from kitchener.actors.admission.admission import TurnLimiter
from kitchener.actors.assembly import ComponentKinds, SharedResources
from kitchener.actors.consolidation.triggers import BackgroundJobs
from kitchener.actors.executor.direct_call import GatewayDirectCall
from kitchener.actors.executor.executor import HO1Executor
from kitchener.actors.executor.executor_host import HostedExecutor
from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.actors.executor.reply_contract import direct_contract_of, is_object_reply, lacks_history, with_reply_contract
from kitchener.actors.sessions.active_text import ActiveText
from kitchener.actors.sessions.item_tool import ContextItems
from kitchener.actors.similarity.embeddings import Embeddings
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.actors.tools.named_tools import load_tools
from kitchener.actors.tools.registry import Tool, ToolRegistry
from kitchener.actors.turn.services import DegradedCall
from kitchener.actors.work.budget import TokenBudgeter
from kitchener.cancellation import ends_when_told
from kitchener.clock import Clock
from kitchener.config import DEFAULT_AGENT, HO2Config, LimitsConfig, RuntimeConfig
from kitchener.config.settings import dotted_key, toml_key
from kitchener.config.shown import described_key
from kitchener.errors import CallerError, ConfigError, KitchenerError, LedgerWriteError, RuntimeClosed, ToolError
from kitchener.errors.root import CONFIGURATION
from kitchener.gateway import LLMGateway
from kitchener.ids import IdSource
from kitchener.lanes.mailbox import BACKGROUND, INTERACTIVE, RESTART_WINDOW_S, Mailbox
from kitchener.lanes.own_thread import OwnThread
from kitchener.lanes.worker_lane import LaneLimits
from kitchener.ledger import Ledgers, open_ledgers
from kitchener.logs import get_logger
from kitchener.mcp.definitions import source_of
from kitchener.media.content_store import ContentStore
from kitchener.memory import HO3Memory
from kitchener.records.embedding import EmbeddingProvider
from kitchener.records.prompt import PromptGateway, Provider
from kitchener.records.turn import UpdateListener
from kitchener.records.work_order import WorkOrder
from kitchener.runtime.loading import check_is_configured
from kitchener.runtime.memories import memory_of
from kitchener.runtime.queries.nested_approvals import OpenedClass
from kitchener.runtime.root_layout import index_dir, ledger_paths
from kitchener.runtime.sealed_root import record_sealing
from kitchener.runtime.tools.agent_tools import AGENT_PREFIX, AgentTool, SupervisorOf, agent_tool
from kitchener.runtime.tools.connected_servers import PREFIX, McpServers, wanted_tools
from kitchener.sealing import Sealer
from kitchener.signing import Signer
from kitchener.telemetry.port import Telemetry

_log = get_logger(__name__)

ALL_GIVEN: Final = "*"
"""In the setting `tools`: all tools that were given to `open_runtime`."""


@dataclass(frozen=True, slots=True)
class RuntimeArguments:
    """The arguments of `open_runtime` that are not settings."""

    tools: tuple[Callable[..., object], ...]
    providers: Mapping[str, Provider]
    degraded_call: DegradedCall | None
    clock: Clock
    ids: IdSource | None
    admin_socket: bool | None = None
    embeddings: EmbeddingProvider | None = None
    telemetry: Telemetry | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.providers, Mapping):
            raise _misfit("providers", self.providers, "objects by the ids of providers, {'mine': MyProvider()}")
        for name, method in (("clock", "time_us"), ("ids", "session_id"), ("embeddings", "embed"), ("telemetry", "caller")):
            given = getattr(self, name)
            if given is not None and (isinstance(given, type) or not callable(getattr(given, method, None))):
                raise _misfit(name, given, f"an object with `{method}`")
        if self.degraded_call is not None and not callable(self.degraded_call):
            raise _misfit("degraded_call", self.degraded_call, "a function")
        if self.admin_socket is not None and type(self.admin_socket) is not bool:
            raise _misfit("admin_socket", self.admin_socket, "True, False or None")


def checked_tools(tools: Iterable[Callable[..., object]]) -> tuple[Callable[..., object], ...]:
    """The argument `tools` of `open_runtime` as a tuple. Raises ConfigError if it is no list, such as a single function."""
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Iterable):
        raise _misfit("tools", tools, "a list of functions marked with `@tool`, [list_packages]")
    return tuple(tools)


def _misfit(name: str, given: object, expected: str) -> ConfigError:
    """The error about an argument of `open_runtime`, by its type: it may hold secrets."""
    found = f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__
    return ConfigError(f"argument {name}", "", "", f"is {found}: expected {expected}")


class WriteFailure:
    """The first failed commit of a runtime, after which its ledgers accept no entries. Tasks can wait for it."""

    def __init__(self) -> None:
        self.error: LedgerWriteError | None = None
        self._noted = anyio.Event()

    def note(self, error: LedgerWriteError) -> None:
        """Records that a commit failed. Only the first failure counts, because the others follow from it."""
        if self.error is None:
            self.error = error
            self._noted.set()

    async def wait(self) -> LedgerWriteError:
        """Returns the failure as soon as there is one."""
        await self._noted.wait()
        assert self.error is not None
        return self.error


@dataclass(frozen=True, slots=True)
class RuntimeParts:
    """The parts of a runtime that all agent classes share."""

    config: RuntimeConfig
    source: str
    """Where the settings come from, for errors."""
    injected: RuntimeArguments
    gateway: LLMGateway
    models: PromptGateway
    """The gateway that executors call, with the limits of `[spending]` if there are any."""
    limiter: TurnLimiter
    active_text: ActiveText
    sealer: Sealer | None
    signer: Signer | None
    content: ContentStore
    embeddings: Embeddings | None
    memories: Mapping[str, HO3Memory]
    """Agent class to its long-term memory. Classes without a memory are missing."""
    servers: McpServers
    telemetry: Telemetry | None
    tasks: TaskGroup
    scope: anyio.CancelScope
    thread: OwnThread = field(default_factory=OwnThread)
    write_failure: WriteFailure = field(default_factory=WriteFailure)
    opening_memory: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while a memory that no agent class uses is open."""


def check_room(config: RuntimeConfig, agent_class: str, opened: Collection[str]) -> None:
    """Refuses another class without settings if `max_agent_classes` of them are open. Callers may choose their names."""
    configured, limit = {DEFAULT_AGENT, *config.classes}, config.limits.max_agent_classes
    if agent_class not in configured and sum(name not in configured for name in opened) >= limit:
        raise CallerError(
            f"agent class {agent_class!r} is not configured, and limits.max_agent_classes = {limit} such classes are open;"
            f" add a table [{toml_key(('agents', agent_class))}] to the settings, or raise the limit"
        )


class _OpeningAttempt:
    """One attempt to open the ledgers of an agent class."""

    __slots__ = ("closed", "error", "settled")

    def __init__(self) -> None:
        self.settled, self.closed = anyio.Event(), anyio.Event()
        self.error: Exception | None = None
        """Why opening failed; None: it succeeded, or has not ended yet."""


class Agent:
    """One agent class: its executor behind its mailbox, its supervisor, and the task that holds its ledgers."""

    def __init__(self, config: HO2Config, shared: RuntimeParts, supervisor_of: SupervisorOf) -> None:
        config = with_reply_contract(config)
        self._config, self._shared = config, shared
        injected, limits = shared.injected, shared.config.limits
        self._memory = memory_of(shared.memories, config.agent_class)
        kinds = shared.telemetry.kinds if shared.telemetry is not None else ComponentKinds()
        self.ledgers = kinds.ledgers(also=self._memory.ledgers if self._memory is not None else ())
        items, wanted = ContextItems(), wanted_tools(config, shared.config)
        self.tools = tools = tools_of(
            config,
            injected.tools,
            items,
            is_configured=bool(shared.config.classes),
            supervisor_of=supervisor_of,
            servers=wanted,
            kind=kinds.tools,
        )
        self.asks = tuple(dict.fromkeys(each.agent_class for each in tools.functions if isinstance(each, AgentTool)))
        """The agent classes that its tools ask."""
        shared.servers.attach(tools, wanted)
        self.background = BackgroundJobs(shared.tasks, limits.background_queue)
        host = _resources_of(shared, self.background, self.ready, kinds)
        prompts = _prompts_of(config)
        self.mailbox = _mailbox_of(self._executor(prompts, host.listeners), config.agent_class, limits)
        self.supervisor = HO2Supervisor(
            agent_class=config.agent_class,
            ho1_executor=HostedExecutor(self.mailbox),
            ledgers=self.ledgers,
            token_budgeter=TokenBudgeter(),
            config=config,
            ho3_memory=self._memory,
            degraded_call=injected.degraded_call,
            direct_call=self._direct_call(prompts),
            tools=tools,
            context_items=items,
            clock=injected.clock,
            ids=injected.ids,
            host=host,
        )
        shared.servers.let_wait(tools, wanted)
        self._host = host
        self._opening, self._closing = _OpeningAttempt(), anyio.Event()

    async def opened(self) -> OpenedClass:
        """The class, as its requests for approval are read. Opens its ledgers if need be."""
        await self.ready()
        return OpenedClass(self.ledgers.ho2m, self.asks)

    def _executor(self, prompts: PromptLibrary, listeners: dict[str, UpdateListener]) -> HO1Executor:
        return HO1Executor(
            ledgers=self.ledgers,
            gateway=self._shared.models,
            prompts=prompts,
            tools=self.tools,
            clock=self._shared.injected.clock,
            config=self._config,
            limits=self._shared.config.limits,
            listeners=listeners,
            content=self._shared.content,
        )

    def _direct_call(self, prompts: PromptLibrary) -> GatewayDirectCall:
        return GatewayDirectCall(
            ledgers=self.ledgers,
            gateway=self._shared.models,
            prompts=prompts,
            clock=self._shared.injected.clock,
            config=self._config,
            limits=self._shared.config.limits,
            contract_id=direct_contract_of(self._config),
        )

    @property
    def is_open(self) -> bool:
        """Whether the ledgers are open or closing."""
        return self._host.is_open

    def open(self) -> None:
        """Starts to open the ledgers; `ready` waits for the result."""
        self._opening = _OpeningAttempt()
        self._shared.tasks.start_soon(self._hold, self._opening, name=f"ledgers of {self._config.agent_class}")

    async def ready(self) -> None:
        """Returns when the ledgers are open; raises the error if opening fails. Retries once after an earlier failure."""
        self._shared.thread.check()
        if self._closing.is_set():
            raise RuntimeClosed("the runtime is shutting down and takes no more calls")
        if self._opening.error is not None:
            self.open()
        opening = self._opening
        await opening.settled.wait()
        if opening.error is not None:
            raise opening.error

    async def _hold(self, opening: _OpeningAttempt) -> None:
        """Opens the ledgers and keeps them open until the runtime closes; in one task, so no cancel scope crosses tasks."""
        what = f"the task that holds the ledgers of {self._config.agent_class}"
        try:
            with ends_when_told(what):
                async with self._open_ledgers() as opened:
                    await record_sealing(opened.ho2m, self._shared.sealer)
                    self.ledgers.attach(opened)
                    await self.supervisor.recover()
                    async with self.mailbox.open():
                        self._host.is_open = True
                        opening.settled.set()
                        with ends_when_told(what):  # here, too, because the runtime may be cancelled while it closes
                            await self._closing.wait()
        except (KitchenerError, OSError) as error:
            if opening.settled.is_set():
                raise
            opening.error = error
        finally:
            opening.settled.set()
            opening.closed.set()

    async def close(self) -> None:
        """Closes the mailbox and the ledgers, which commits pending entries; returns when they are closed."""
        self._closing.set()
        await self._opening.closed.wait()

    def _open_ledgers(self) -> AbstractAsyncContextManager[Ledgers]:
        settings = self._shared.config
        paths = ledger_paths(settings, self._config.agent_class)
        return open_ledgers(
            ho1m=paths["ho1m"],
            ho2m=paths["ho2m"],
            context=paths["context"],
            agent_class=self._config.agent_class,
            config=settings.ledger,
            clock=self._shared.injected.clock,
            index_dir=index_dir(settings),
            sealer=self._shared.sealer,
            also=self._memory.ledgers if self._memory is not None else (),
            on_failure=self._shared.write_failure.note,
        )


def _resources_of(
    shared: RuntimeParts, background: BackgroundJobs, ready: Callable[[], Awaitable[None]], kinds: ComponentKinds
) -> SharedResources:
    """The objects that all supervisors of a runtime share."""
    return SharedResources(
        limits=shared.config.limits,
        limiter=shared.limiter,
        active_text=shared.active_text,
        tasks=shared.tasks,
        background=background,
        thread=shared.thread,
        is_open=False,
        wait_open=ready,
        signer=shared.signer,
        store=shared.content,
        request_fields=shared.config.router.request_fields,
        media_types=shared.gateway.media_types,
        comparer=shared.embeddings,
        kinds=kinds,
    )


def _prompts_of(config: HO2Config) -> PromptLibrary:
    """The prompts of an agent class. Logs a warning about prompts that a later version will refuse."""
    prompts = PromptLibrary.load(config.prompt_dir)
    if is_object_reply(config, prompts):
        _log.warning("replies as objects end with the next minor version", agent_class=config.agent_class)
    if lacks_history(config, prompts):
        _log.warning("prompt pack has no place for chat messages", agent_class=config.agent_class)
    return prompts


def _mailbox_of(executor: HO1Executor, agent_class: str, limits: LimitsConfig) -> Mailbox[WorkOrder, WorkOrder]:
    """Hosts the executor of an agent class, with a lane for turns and one for background work."""
    return HostedExecutor.hosting(
        executor,
        name=f"HO1 {agent_class}",
        lanes={
            INTERACTIVE: LaneLimits(limits.executor_concurrency, limits.executor_queue),
            BACKGROUND: LaneLimits(limits.background_concurrency, limits.background_queue),
        },
        max_restarts=limits.max_restarts,
        restart_window_s=RESTART_WINDOW_S,
        abort_grace_s=limits.abort_grace_s,
    )


def check_tools(config: RuntimeConfig, source: str) -> None:
    """Imports the tools that settings name by module. Does not know the tools that a program gives to `open_runtime`.

    Raises:
        ConfigError: a tool cannot be loaded; names the class and the tool
    """
    for agent_class, agent in config.agents.items():
        try:
            load_tools(name for name in agent.tools or () if is_module_name(name))
            for asked in _agents_in(agent.tools or ()):
                agent_tool(asked)
                check_is_configured(config, asked)
        except (ToolError, CallerError) as error:
            raise ConfigError(source, dotted_key(("agents", agent_class, "tools")), "", str(error)) from error


def _agents_in(names: Iterable[str]) -> list[str]:
    """The agent classes that the setting `tools` names."""
    return [name.removeprefix(AGENT_PREFIX) for name in names if name.startswith(AGENT_PREFIX)]


def tools_of(
    config: HO2Config,
    given: Sequence[Callable[..., object]],
    items: ContextItems,
    *,
    is_configured: bool,
    supervisor_of: SupervisorOf | None = None,
    servers: Collection[str] = (),
    kind: Callable[..., ToolRegistry] = ToolRegistry,
    given_by: str = "the argument `tools` of open_runtime",
) -> ToolRegistry:
    """The tools of an agent class.

    Args:
        config: the settings of the class; `tools` names its tools
        given: the tools that the program or the command names
        items: the built-in tool, which needs no permission; left out if it could read nothing
        is_configured: whether any class is configured. If so, a class without the setting `tools` has no tools; otherwise it
            has all given ones
        supervisor_of: finds the supervisors that its tools may ask; None: tools do not run
        servers: labels of the MCP servers whose tools the class has; these tools are added later
        kind: the class of the registry
        given_by: what names the given tools, for errors
    """
    known = {declared.tool_id: declared for declared in (each if isinstance(each, Tool) else Tool(each) for each in given)}
    wanted = config.tools if config.tools is not None else (() if is_configured else (ALL_GIVEN,))
    named = [name for name in wanted if ":" not in name and name != ALL_GIVEN]
    at = dotted_key(("agents", config.agent_class, "tools"))
    for name in named:
        if name not in known:
            given_ones = ", ".join(known) or "none was"
            expected = f"expected `module:attribute`, `mcp:LABEL`, `agent:CLASS`, or a tool given by {given_by}: {given_ones}"
            raise ConfigError(CONFIGURATION, at, described_key(name), expected)
    if ALL_GIVEN in wanted:
        named = list(known)
    try:
        loaded = (*load_tools(filter(is_module_name, wanted)), *map(agent_tool, _agents_in(wanted)))
    except ToolError as error:
        raise ConfigError(CONFIGURATION, at, "", str(error)) from error
    chosen = [*loaded, *(known[name] for name in named)]
    if supervisor_of is not None:
        chosen = [each.bound(supervisor_of) if isinstance(each, AgentTool) else each for each in chosen]
    return kind(
        chosen,
        timeout_s=config.tool_timeout_s,
        max_result_bytes=config.tool_result_max_bytes,
        builtin=(items.tool,) if chosen or servers or config.context_mode == "enforce" else (),
        limits=config.tool_limits,
        replaceable=map(source_of, servers),
    )


def is_module_name(name: str) -> bool:
    """Whether a name in the setting `tools` is a `module:attribute` to import."""
    return ":" in name and not name.startswith((AGENT_PREFIX, PREFIX))
