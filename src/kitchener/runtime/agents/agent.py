"""Builds one agent class of a runtime: its executor behind a mailbox, its supervisor, and the task that holds its ledgers.

`open_agents.py` creates one `Agent` for each configured class, and for other classes on first use. An agent knows no other
agent; `RuntimeComponents` has what they share. Explained in `docs/runtime.md`.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import anyio

from kitchener.actors.assembly import ComponentKinds, SharedResources
from kitchener.actors.consolidation.triggers import BackgroundJobs
from kitchener.actors.executor.direct_call import GatewayDirectCall
from kitchener.actors.executor.executor import HO1Executor
from kitchener.actors.executor.executor_host import HostedExecutor
from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.actors.executor.reply_contract import direct_contract_of, is_object_reply, lacks_history, with_reply_contract
from kitchener.actors.sessions.item_tool import ContextItems
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.actors.work.budget import TokenBudgeter
from kitchener.cancellation import ends_when_told
from kitchener.config import HO2Config, LimitsConfig
from kitchener.errors import KitchenerError, RuntimeClosed
from kitchener.lanes.mailbox import BACKGROUND, INTERACTIVE, RESTART_WINDOW_S, Mailbox
from kitchener.lanes.worker_lane import LaneLimits
from kitchener.ledger import Ledgers, open_ledgers
from kitchener.logs import get_logger
from kitchener.records.turn import UpdateListener
from kitchener.records.work_order import WorkOrder
from kitchener.runtime.agents.class_tools import tools_of
from kitchener.runtime.agents.shared_components import RuntimeComponents
from kitchener.runtime.memories import memory_of
from kitchener.runtime.queries.nested_approvals import OpenedClass
from kitchener.runtime.root_layout import index_dir, ledger_paths
from kitchener.runtime.sealed_root import record_sealing
from kitchener.runtime.tools.agent_tools import AgentTool, SupervisorOf
from kitchener.runtime.tools.connected_servers import wanted_tools

_log = get_logger(__name__)


class _OpeningAttempt:
    """One attempt to open the ledgers of an agent class."""

    __slots__ = ("closed", "error", "settled")

    def __init__(self) -> None:
        self.settled, self.closed = anyio.Event(), anyio.Event()
        self.error: Exception | None = None
        """Why opening failed; None: it succeeded, or has not ended yet."""


class Agent:
    """One agent class: its executor behind its mailbox, its supervisor, and the task that holds its ledgers."""

    def __init__(self, config: HO2Config, shared: RuntimeComponents, supervisor_of: SupervisorOf) -> None:
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
        """What is needed to read the class's requests for approval. Opens its ledgers if they are not open."""
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
        self._shared.loop.check()
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
    shared: RuntimeComponents, background: BackgroundJobs, ready: Callable[[], Awaitable[None]], kinds: ComponentKinds
) -> SharedResources:
    """The objects that all supervisors of a runtime share."""
    return SharedResources(
        limits=shared.config.limits,
        limiter=shared.limiter,
        active_text=shared.active_text,
        tasks=shared.tasks,
        background=background,
        loop=shared.loop,
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
