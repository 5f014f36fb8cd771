"""The composition root: puts the parts together, opens them in order, closes them in the order of the flow.

Here and nowhere else it is decided which executor, gateway and ledgers belong together. An agent class's ledgers are held by
one task of their own, opened at start for the classes that are configured and on first use for others. Closing stops
admission, lets running turns finish within a grace period, aborts the rest, commits and closes. Explained in `docs/runtime.md`.
"""

import gc
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from kitchener.actors.admission import TurnLimiter
from kitchener.actors.assembly import Host
from kitchener.actors.budget import TokenBudgeter
from kitchener.actors.consolidation import Afterwards
from kitchener.actors.context_items import ContextItems
from kitchener.actors.executor import HO1Executor
from kitchener.actors.hosts import GatewayCall, HostedExecutor, HostedGateway
from kitchener.actors.mailbox import BACKGROUND, CALLING_CHAIN, INTERACTIVE, LaneLimits, LaneStatistics, Mailbox
from kitchener.actors.prompts import PromptLibrary
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.actors.tools import Tool, ToolRegistry, load_tools
from kitchener.actors.turn_parts import DegradedCall
from kitchener.cancellation import ends_when_told
from kitchener.clock import Clock, SystemClock
from kitchener.config import HO2Config, LimitsConfig, RuntimeConfig, described_key
from kitchener.errors import ActorStopped, CallerError, ConfigError, KitchenerError, ReentrantTurn, RuntimeClosed
from kitchener.gateway import LLMGateway, build_providers
from kitchener.ids import IdSource, check_recorded_subject, is_agent_class, path_part
from kitchener.ledger import Ledgers, open_ledgers
from kitchener.memory import HO3Memory
from kitchener.records.prompt import PromptGateway, PromptResponse, Provider
from kitchener.runtime.erasing import ErasureReport, erase, keyring_of, open_stores
from kitchener.runtime.leaving import Departure
from kitchener.runtime.loading import LoadedConfig, check_config, load_config
from kitchener.runtime.memories import open_memories
from kitchener.runtime.places import sealer_of, supervisors_ledgers
from kitchener.sealing import Sealer
from kitchener.signing import Signer, load_signer

_log = structlog.get_logger(__name__)


class Runtime:
    """A running Kitchener; made by `open_runtime`."""

    def __init__(self, loaded: LoadedConfig, parts: "_Parts") -> None:
        self.config: RuntimeConfig = loaded.config
        self.root = Path(loaded.config.plane_root)
        self.gateway: PromptGateway = HostedGateway(parts.gateway_mailbox, stream_buffer=loaded.config.limits.stream_buffer)
        """What HO1 calls: the gateway behind its mailbox."""
        self._parts = parts
        self._tasks, self._scope = parts.tasks, parts.scope
        self._agents: dict[str, _Agent] = {}
        self._erasing = anyio.Lock()
        limits = loaded.config.limits
        self._limiter = TurnLimiter(limits.max_running_turns, limits.max_waiting_turns)

    def supervisor(self, agent_class: str = "ADMIN") -> HO2Supervisor:
        """The supervisor of an agent class; always the same one. A class that is not configured has the defaults.

        Raises:
            CallerError: `agent_class` is neither `ADMIN` nor `RESIDENT:<name>`
            ConfigError, PromptError, ToolError: the class cannot be put together
        """
        return self._agent(agent_class).supervisor

    def ledgers(self, agent_class: str = "ADMIN") -> Ledgers:
        """The ledgers of an agent class; open after the first call of its supervisor."""
        return self._agent(agent_class).ledgers

    def memory(self, agent_class: str = "ADMIN") -> HO3Memory:
        """The long-term memory, with the thresholds of an agent class; namespaces are `agent_class/subject_id`.

        Raises:
            CallerError: it is off
        """
        memory = self._parts.memories.get(agent_class)
        if memory is None:
            raise CallerError(f"agent class {agent_class!r} has no long-term memory; set agents.{agent_class}.ho3_enabled")
        return memory

    async def drain(self) -> None:
        """Returns when no turn runs and no consolidation is pending. New ones are still admitted.

        Raises:
            ReentrantTurn: a tool of a turn asks for it, which would wait for itself
        """
        if (chain := CALLING_CHAIN.get()) and not self._limiter.is_closed:  # a tool may open a runtime, and close it
            raise ReentrantTurn(f"a tool of session {chain[-1]!r} drains the runtime, which waits for its own turn")
        await self._limiter.wait_idle()
        for agent in self._agents.values():
            await agent.afterwards.wait_idle()

    async def erase_subject(self, subject_id: str) -> ErasureReport:
        """Erases a subject while others' turns go on: destroys their key, ends their sessions, withdraws what was learned.

        What runs for them is cancelled, and calls for them are refused until it is done; then they may begin anew, under a
        new key. Cut off, it is finished by the next call, or when a runtime opens next, and calls are refused until then.

        Raises:
            ConfigError: there is no keyring
            UnknownSubject: there is nothing of theirs that could be erased
            ReentrantTurn: a tool of the subject's own turn asks for it
            Overloaded: what runs for them did not end in time; nothing was erased
            LedgerError, SealingError: it could not be finished; try again
        """
        keyring_of(self._parts.sealer)
        check_recorded_subject(subject_id)
        for agent_class in supervisors_ledgers(self.config):
            self._agent(agent_class)
        async with self._erasing:
            for agent in self._agents.values():
                await agent.ready()
            present = dict(self._agents)
            with Departure(subject_id, {name: agent.supervisor.leaving for name, agent in present.items()}) as departure:
                await departure.begin()
                async with open_stores(
                    self.config,
                    clock=self._parts.injected.clock,
                    sealer=self._parts.sealer,
                    supervisors={name: agent.ledgers.ho2m for name, agent in present.items()},
                    opened=tuple(self._parts.memories.values()),
                ) as stores:
                    departure.is_erasing = True
                    return await erase(subject_id, stores, self._parts.injected.clock)

    async def _finish_erasures(self) -> None:
        """Finishes the erasures that were begun before a crash."""
        if self._parts.sealer is None:
            return
        for begun in await anyio.to_thread.run_sync(self._parts.sealer.keyring.erasures):
            try:
                await self.erase_subject(begun.subject_id)
            except KitchenerError as error:  # their key counts as destroyed all the same, and others' turns can be taken
                _log.warning("erasure not finished", subject_id=begun.subject_id, problem=str(error))
                for agent in self._agents.values():
                    agent.supervisor.leaving.bar(begun.subject_id)

    def statistics(self) -> dict[str, Any]:
        """Queues and workers now, for monitoring."""
        mailboxes: dict[str, dict[str, LaneStatistics]] = {"gateway": self._parts.gateway_mailbox.statistics()}
        mailboxes.update((agent_class, agent.mailbox.statistics()) for agent_class, agent in self._agents.items())
        return {
            "running_turns": self._limiter.running,
            "waiting_turns": self._limiter.waiting,
            "pending_consolidations": sum(agent.afterwards.pending for agent in self._agents.values()),
            "mailboxes": mailboxes,
        }

    def _agent(self, agent_class: str) -> "_Agent":
        agent = self._agents.get(agent_class)
        if agent is None:
            if not is_agent_class(agent_class):
                raise CallerError(f"agent class {agent_class!r}: expected 'ADMIN' or 'RESIDENT:<name>'")
            config = self.config.agents.get(agent_class) or HO2Config(agent_class=agent_class)
            agent = self._agents[agent_class] = _Agent(config, self)
            agent.open()
        return agent

    async def _open_configured(self) -> None:
        for agent_class in self.config.agents or ("ADMIN",):
            await self._agent(agent_class).ready()

    async def _close(self) -> None:
        limits = self.config.limits
        self._limiter.close()
        with anyio.move_on_after(limits.shutdown_grace_s):
            await self.drain()
        self._limiter.cancel_running()
        for agent in self._agents.values():
            agent.afterwards.cancel()
        with anyio.move_on_after(limits.abort_grace_s):
            await self.drain()
        for agent in self._agents.values():
            await agent.close()


@dataclass(frozen=True, slots=True)
class _Injected:
    """What the program passes in."""

    tools: tuple[Callable[..., Any], ...]
    providers: Mapping[str, Provider]
    degraded_call: DegradedCall | None
    clock: Clock
    ids: IdSource | None


@dataclass(frozen=True, slots=True)
class _Parts:
    """What all agent classes of a runtime share."""

    injected: _Injected
    gateway_mailbox: Mailbox[GatewayCall, PromptResponse | None]
    sealer: Sealer | None
    signer: Signer | None
    memories: Mapping[str, HO3Memory]
    """Long-term memory by agent class, for those that use it."""
    tasks: TaskGroup
    scope: anyio.CancelScope


class _LaterLedgers:
    """Ledgers that are opened after the objects that use them were made; takes on the opened ones' attributes."""

    def take_on(self, ledgers: Ledgers) -> None:
        for name in (
            "ho1m",
            "ho2m",
            "context",
            "commit",
            "request_commit",
            "enter_turn",
            "leave_turn",
            "positions",
            "covers",
            "is_sole_writer",
        ):
            setattr(self, name, getattr(ledgers, name))


class _Opening:
    """One attempt to open the ledgers of an agent class."""

    __slots__ = ("closed", "error", "settled")

    def __init__(self) -> None:
        self.settled, self.closed = anyio.Event(), anyio.Event()
        self.error: Exception | None = None
        """Why they are not open, once it is settled."""


class _Agent:
    """One agent class: its executor behind its mailbox, its supervisor, and the task that holds its ledgers."""

    def __init__(self, config: HO2Config, runtime: Runtime) -> None:
        self._config, self._runtime = config, runtime
        injected, limits = runtime._parts.injected, runtime.config.limits
        self._later = _LaterLedgers()
        self.ledgers = cast(Ledgers, self._later)
        items = ContextItems() if config.context_mode == "enforce" else None
        tools = tools_of(config, injected.tools, (items.tool,) if items is not None else ())
        self.afterwards = Afterwards(runtime._tasks, config.consolidation_queue)
        host = Host(
            limits=limits,
            limiter=runtime._limiter,
            tasks=runtime._tasks,
            afterwards=self.afterwards,
            ready=self.ready,
            signer=runtime._parts.signer,
        )
        self._memory = runtime._parts.memories.get(config.agent_class)
        executor = HO1Executor(
            ledgers=self.ledgers,
            gateway=runtime.gateway,
            prompts=PromptLibrary.load(config.prompt_dir),
            tools=tools,
            clock=injected.clock,
            config=config,
            listeners=host.listeners,
        )
        self.mailbox = HostedExecutor.hosting(
            executor,
            name=f"HO1 {config.agent_class}",
            lanes={
                INTERACTIVE: LaneLimits(limits.executor_concurrency, limits.executor_queue),
                BACKGROUND: LaneLimits(limits.background_concurrency, limits.background_queue),
            },
            **_restarts(limits),
        )
        self.supervisor = HO2Supervisor(
            agent_class=config.agent_class,
            ho1_executor=HostedExecutor(self.mailbox),
            ledgers=self.ledgers,
            token_budgeter=TokenBudgeter(),
            config=config,
            ho3_memory=self._memory,
            degraded_call=injected.degraded_call,
            tools=tools,
            context_items=items,
            clock=injected.clock,
            ids=injected.ids,
            host=host,
        )
        self._host = host
        self._opening, self._closing = _Opening(), anyio.Event()

    def open(self) -> None:
        """Begins to open the ledgers; `ready` says how that went."""
        self._opening = _Opening()
        self._runtime._tasks.start_soon(self._hold, self._opening, name=f"ledgers of {self._config.agent_class}")

    async def ready(self) -> None:
        """Returns when the ledgers are open; raises why they are not. Where that failed before, it is tried once more."""
        if self._closing.is_set():
            raise RuntimeClosed("the runtime is shutting down and takes no more calls")
        if self._opening.error is not None:
            self.open()
        opening = self._opening
        await opening.settled.wait()
        if opening.error is not None:
            raise opening.error

    async def _hold(self, opening: "_Opening") -> None:
        """Opens the ledgers and holds them until the runtime closes; one task, so that no scope crosses tasks."""
        what = f"the task that holds the ledgers of {self._config.agent_class}"
        try:
            with ends_when_told(what):
                async with open_ledgers(**self._places()) as ledgers:
                    self._later.take_on(ledgers)
                    await self.supervisor.recover()
                    async with self.mailbox.open():
                        self._host.ready = None
                        opening.settled.set()
                        with ends_when_told(what):  # here too: on the way out, the runtime may be told to end as well
                            await self._closing.wait()
        except (KitchenerError, OSError) as error:
            if opening.settled.is_set():
                raise
            opening.error = error
        finally:
            opening.settled.set()
            opening.closed.set()

    async def close(self) -> None:
        """Commits and closes."""
        self._closing.set()
        await self._opening.closed.wait()

    def _places(self) -> dict[str, Any]:
        root, config = self._runtime.root, self._config
        part = path_part(config.agent_class)
        ho2m = Path(config.ho2m_path) if config.ho2m_path else root / "HO2" / part / "ho2m.jsonl"
        return {
            "ho1m": Path(config.ho1m_path) if config.ho1m_path else root / "HO1" / part / "ho1m.jsonl",
            "ho2m": ho2m,
            "context": ho2m.with_name("context.jsonl"),
            "agent_class": config.agent_class,
            "config": self._runtime.config.ledger,
            "clock": self._runtime._parts.injected.clock,
            "index_dir": root / "index",
            "sealer": self._runtime._parts.sealer,
            "also": self._memory.ledgers if self._memory is not None else (),
        }


@asynccontextmanager
async def open_runtime(
    config: RuntimeConfig | str | Path | None = None,
    *,
    root: str | Path | None = None,
    tools: Sequence[Callable[..., Any]] = (),
    providers: Mapping[str, Provider] | None = None,
    degraded_call: DegradedCall | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> AsyncIterator[Runtime]:
    """A running Kitchener, for as long as the context is open.

    Args:
        config: path of a `kitchener.toml`, or a `RuntimeConfig`; None: the offline model, ledgers under `./.kitchener`
        root: overrides `plane_root`
        tools: functions marked with `@tool`; which agent class may use which is its `tools` setting
        providers: further providers by id, beside those of the configuration
        degraded_call: answers a message when the executor itself is broken; recorded as a violation
        clock: time of day; None: the machine's
        ids: fresh session ids; None: random ones

    Raises:
        ConfigError: a setting is wrong; names file, key and value
        LedgerError: a ledger is damaged, locked, or cannot be where it should
        SigningError: a key to sign with is configured and cannot be used
        ActorStopped: on leaving, if an actor failed too often; its last failure is the cause
    """
    loaded = _load(config, root, providers or {})
    injected = _Injected(tuple(tools), providers or {}, degraded_call, clock or SystemClock(), ids)
    limits = loaded.config.limits
    body_error: Exception | None = None
    try:
        async with anyio.create_task_group() as tasks:
            runtime: Runtime = await tasks.start(_hold, loaded, injected)
            try:
                await runtime._open_configured()
                await runtime._finish_erasures()
                yield runtime
            except Exception as error:  # noqa: BLE001  raised again below, outside the task group, so that it stays itself
                body_error = error
            finally:
                try:
                    with anyio.move_on_after(2 * (limits.shutdown_grace_s + limits.abort_grace_s), shield=True):
                        await runtime._close()
                finally:
                    runtime._scope.cancel()
    except BaseExceptionGroup as group:
        only = _only(group)
        raise only from only.__cause__
    if body_error is not None:
        raise body_error


async def _hold(loaded: LoadedConfig, injected: "_Injected", *, task_status: TaskStatus[Runtime]) -> None:
    """Holds everything a runtime consists of, until it is closed.

    Shielded: a program that is cancelled closes its runtime in the order of the flow, and a turn's end is still recorded.
    """
    config, limits = loaded.config, loaded.config.limits
    with anyio.CancelScope(shield=True) as scope:
        async with build_providers(config.router, given=tuple(injected.providers)) as known:
            gateway = LLMGateway(config.router, {**known, **injected.providers}, max_waiting=limits.gateway_queue)
            mailbox = HostedGateway.hosting(
                gateway,
                name="gateway",
                lanes={INTERACTIVE: LaneLimits(limits.gateway_concurrency, limits.gateway_queue)},
                **_restarts(limits),
            )
            sealer, key = sealer_of(config.ledger), config.ledger.signing_key
            signer = await anyio.to_thread.run_sync(load_signer, key) if key is not None else None
            async with (
                mailbox.open(),
                open_memories(config, clock=injected.clock, sealer=sealer) as memories,
                anyio.create_task_group() as tasks,
            ):
                task_status.started(Runtime(loaded, _Parts(injected, mailbox, sealer, signer, memories, tasks, scope)))
                with ends_when_told("the task that holds the runtime"):
                    await anyio.sleep_forever()


def _load(config: RuntimeConfig | str | Path | None, root: str | Path | None, given: Mapping[str, Provider]) -> LoadedConfig:
    """The settings, complete and checked, wherever they come from."""
    if not isinstance(config, RuntimeConfig):
        loaded = load_config(config, root=root)
    else:
        named = {name: agent.model_copy(update={"agent_class": name}) for name, agent in config.agents.items()}
        where = Path(root if root is not None else config.plane_root).absolute()
        config = config.model_copy(update={"plane_root": str(where), "agents": named})
        loaded = LoadedConfig(config, "RuntimeConfig", Path.cwd())
    check_config(loaded.config, source=loaded.source, given=tuple(given))
    return loaded


def tools_of(config: HO2Config, given: Sequence[Callable[..., Any]], builtin: Sequence[Tool[..., Any]] = ()) -> ToolRegistry:
    """The tools of an agent class: all that were given, or those its setting names."""
    known = {declared.tool_id: declared for declared in (each if isinstance(each, Tool) else Tool(each) for each in given)}
    chosen: list[Tool[..., Any]] = list(known.values())
    if config.tools is not None:
        named = [name for name in config.tools if ":" not in name]
        for name in named:
            if name not in known:
                expected = f"expected `module:attribute`, or a tool given to open_runtime: {', '.join(known) or 'none was'}"
                raise ConfigError(f"agents.{config.agent_class}", "tools", described_key(name), expected)
        chosen = [*load_tools(name for name in config.tools if ":" in name), *(known[name] for name in named)]
    return ToolRegistry(chosen, timeout_s=config.tool_timeout_s, max_result_bytes=config.tool_result_max_bytes, builtin=builtin)


def _restarts(limits: LimitsConfig) -> dict[str, Any]:
    return {
        "max_restarts": limits.max_restarts,
        "restart_window_s": limits.restart_window_s,
        "abort_grace_s": limits.abort_grace_s,
    }


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error of nested groups; the first actor that stopped, where one took others with it; else the group."""
    leaves = list(_leaves(group))
    if len(leaves) == 1 or all(isinstance(leaf, ActorStopped) for leaf in leaves):
        return leaves[0]
    return group


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def tune_gc() -> None:
    """Settings of the garbage collector for a process that does nothing but serve: a tenth less CPU time a turn.

    What is alive now is never looked at again, and collections come so rarely that the objects of a thousand running turns
    are gone before one looks at them. For applications and servers to call once, after they have loaded what they need; a
    library does not do it unasked.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 50)


__all__ = ["Runtime", "open_runtime", "tune_gc"]
