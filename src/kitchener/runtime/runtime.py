"""The composition root: turns a configuration into a running Kitchener, and shuts it down in order.

Only this module decides which executor, gateway and ledgers belong together. One task per agent class (`agents/`) holds that
class's ledgers: it starts at once for configured classes, and on first use for others. Closing stops admission, lets running
turns finish within a grace period, aborts the rest, commits and closes. Explained in `docs/runtime.md`.
"""

import gc
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path

import anyio
from anyio.abc import TaskStatus

from kitchener.actors.admission.admission import TurnLimiter
from kitchener.actors.admission.argument_checks import check_count, check_is_text, check_texts_if_given
from kitchener.actors.sessions.active_text import ActiveText
from kitchener.actors.similarity.embedding_comparer import EmbeddingComparer
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.actors.turn.services import DegradedCall
from kitchener.cancellation import ends_when_told
from kitchener.clock import Clock, SystemClock
from kitchener.config import DEFAULT_AGENT, LimitsConfig, RuntimeConfig
from kitchener.errors import CallerError, KitchenerError, LedgerWriteError, ReentrantTurn
from kitchener.gateway import LLMGateway, build_providers
from kitchener.gateway.embedding_providers.configured_provider import open_embeddings
from kitchener.gateway.spending_limits import NOTHING, MeteredGateway, SpendingBook, Spent
from kitchener.ids import IdSource, SessionId, check_erasable
from kitchener.lanes.calling_chain import calling_chain
from kitchener.lanes.fair_queue import LaneStatistics
from kitchener.ledger import Ledgers
from kitchener.logs import get_logger
from kitchener.media.content_store import ContentStore
from kitchener.memory import HO3Memory
from kitchener.plain_names import quoted
from kitchener.records.embedding import EmbeddingProvider
from kitchener.records.prompt import PromptGateway, Provider
from kitchener.runtime.admin.listener import AdminListener
from kitchener.runtime.admin.operation import AdminRoot
from kitchener.runtime.admin.running_root import RunningRoot, add_while_serving
from kitchener.runtime.admin.runtime_statistics import RuntimeStatistics
from kitchener.runtime.agents.open_agents import OpenAgents
from kitchener.runtime.agents.shared_components import RuntimeArguments, RuntimeComponents, checked_tools
from kitchener.runtime.erasure import ErasureGuards, ErasureReport, erase, keyring_of, open_stores
from kitchener.runtime.loading import LoadedConfig
from kitchener.runtime.loops.other_loop import on_own_loop
from kitchener.runtime.loops.own_task import OwnTask
from kitchener.runtime.memories import memory_of, open_memories
from kitchener.runtime.portable.conversation_file import SpokenConversation
from kitchener.runtime.portable.conversations import ConversationsToAdd, check_target
from kitchener.runtime.queries.approval_list import ApprovalInfo
from kitchener.runtime.queries.nested_approvals import list_with_nested
from kitchener.runtime.queries.session_list import SessionInfo, list_sessions
from kitchener.runtime.queries.spent_since import spent_since
from kitchener.runtime.root_layout import index_dir, loaded_settings, sealer_of, signer_of, supervisors_ledgers
from kitchener.runtime.root_wait import check_wait, wait_until_released
from kitchener.runtime.sealed_root import check_place
from kitchener.runtime.setting_checks import check_config, named_source
from kitchener.runtime.tools.connected_servers import open_servers
from kitchener.telemetry.port import Telemetry, chosen_telemetry
from kitchener.times import iso_of

_log = get_logger(__name__)


class Runtime:
    """A running Kitchener; made by `open_runtime`."""

    def __init__(self, shared: RuntimeComponents) -> None:
        self.config: RuntimeConfig = shared.config
        self.root: Path = Path(shared.config.plane_root)
        self.gateway: PromptGateway = shared.models
        """The gateway that HO1 calls."""
        self.telemetry: Telemetry | None = shared.telemetry
        """Reports turns to OpenTelemetry; None: telemetry is off."""
        self._shared, self._agents = shared, OpenAgents(shared)
        self._erasing = anyio.Lock()
        self._listener: AdminListener | None = None

    def supervisor(self, agent_class: str = DEFAULT_AGENT) -> HO2Supervisor:
        """The supervisor of an agent class; every call returns the same object.

        Raises:
            CallerError: `agent_class` is not a valid name; or it is not among the configured classes; or no class is configured
                and `max_agent_classes` are open
            ConfigError, PromptError, ToolError: the class cannot be built from its settings
        """
        return self._agents.supervisor(agent_class)

    def ledgers(self, agent_class: str = DEFAULT_AGENT) -> Ledgers:
        """The ledgers of an agent class; open after the first call of its supervisor.

        Raises:
            CallerError: the class is not configured, or its supervisor was not asked for
        """
        return self._agents.ledgers(agent_class)

    @property
    def admin_root(self) -> AdminRoot:
        """This root for operations of administration (`kitchener.runtime.admin.operations`)."""
        return RunningRoot(
            self._shared,
            agent=lambda name, is_on_record: self._agents.agent(name, is_on_record=is_on_record),
            erase=self.erase_subject,
            statistics=self.statistics,
        )

    def memory(self, agent_class: str = DEFAULT_AGENT) -> HO3Memory:
        """The long-term memory, with the thresholds of an agent class; namespaces are `agent_class/subject_id`.

        Raises:
            CallerError: the agent class has no long-term memory
        """
        check_is_text("agent_class", agent_class)
        memory = memory_of(self._shared.memories, agent_class)
        if memory is None:
            raise CallerError(f"agent class {quoted(agent_class)} has no long-term memory; set ho3_enabled in its settings")
        return memory

    async def sessions(
        self, agent_class: str = DEFAULT_AGENT, *, subject_id: str | None = None, limit: int = 100
    ) -> list[SessionInfo]:
        """The sessions of an agent class that began last, newest first. Their turns: `supervisor.session(id)`.

        Args:
            agent_class: the agent class
            subject_id: only this subject's sessions; None: all subjects'
            limit: most sessions, at least 1

        Raises:
            CallerError: `agent_class` is unknown, `subject_id` is no text, or `limit` is below 1
        """
        check_count("limit", limit)
        check_texts_if_given(subject_id=subject_id)
        agent = self._agents.agent(agent_class)
        await agent.ready()
        return await list_sessions(agent.ledgers.ho2m, subject_id=subject_id, limit=limit)

    async def begin_from(self, earlier: SpokenConversation, *, subject_id: str, agent_class: str = DEFAULT_AGENT) -> SessionId:
        """Starts a session with the messages of an earlier conversation elsewhere, and returns its id.

        The messages are recorded as imported. The same conversation of the same subject gives the same session, unless the
        `title` differs.

        Args:
            earlier: the messages; `name` becomes the session's external id
            subject_id: the subject of the conversation
            agent_class: the agent class

        Raises:
            CallerError: an argument is wrong, or a message is too long
            SealingError: the subject is being erased
        """
        check_target(self.config, subject_id, agent_class)
        agent, now = self._agents.agent(agent_class), iso_of(self._shared.injected.clock.time_us())
        await agent.ready()
        place, sealer = Path(self.config.plane_root), self._shared.sealer
        found = ConversationsToAdd(place, subject_id, agent_class, config=self.config, sealer=sealer, now=now)
        found.take(earlier)
        added = await add_while_serving(found, agent, subject_id)
        return SessionId(added.conversations[0].session_id)

    async def pending_approvals(
        self, agent_class: str = DEFAULT_AGENT, *, session_id: str | None = None, subject_id: str | None = None
    ) -> list[ApprovalInfo]:
        """The tool calls that wait for a person, oldest first: calls of an agent class and of the agents that it asked.

        The supervisor of their `agent_class` takes the answers. Calls that wait for the client that runs them are left out.

        Args:
            agent_class: the agent class
            session_id: only calls of this session and of the agents that it asked; None: of all sessions
            subject_id: only calls of this subject's sessions; None: of all subjects

        Raises:
            CallerError: `agent_class` is unknown, or an id is no text
        """
        check_texts_if_given(session_id=session_id, subject_id=subject_id)
        self._agents.agent(agent_class)  # refuses what is no agent class

        now = iso_of(self._shared.injected.clock.time_us())
        known = {*self.config.class_names, *self._agents.by_name, agent_class}
        found = await list_with_nested(self._agents.opened, agent_class, now, known=known, session_id=session_id)
        waiting = [each for each in found if each.is_pending and not each.is_of_client]
        return [each for each in waiting if subject_id in (None, each.subject_id)]

    async def drain(self) -> None:
        """Returns when no turn runs and no consolidation is pending. New ones are still admitted.

        Raises:
            ReentrantTurn: the caller is a tool, which would wait for its own turn
        """
        self._shared.loop.check()
        if (chain := calling_chain()) and not self._shared.limiter.is_closed:  # a tool may open and close its own runtime
            raise ReentrantTurn(f"a tool of session {chain[-1]!r} drains the runtime, which waits for its own turn")
        await self._agents.drain()

    async def wait_for_write_failure(self) -> LedgerWriteError:
        """Returns the error when a commit has failed. No turn is recorded after that: close the runtime, and open another."""
        self._shared.loop.check()
        return await self._shared.write_failure.wait()

    async def erase_subject(self, subject_id: str) -> ErasureReport:
        """Erases a subject: destroys the key, ends the sessions, and deactivates what was learned.

        Cancels the subject's running turns, and refuses new calls for the subject until the erasure is complete. Turns of other
        subjects continue. Afterwards the subject may start again, under a new key. The next call, or the next opening of a
        runtime, completes an interrupted erasure; calls for the subject are refused until then.

        Raises:
            ConfigError: there is no keyring
            UnknownSubject: there is no data of the subject to erase
            ReentrantTurn: a tool of the subject's own turn calls this
            Overloaded: the subject's running turns did not end in time; nothing was erased
            LedgerError, SealingError: the erasure is not complete; call again
        """
        self._shared.loop.check()
        keyring_of(self._shared.sealer)
        check_is_text("subject_id", subject_id)
        check_erasable(subject_id)
        for agent_class in supervisors_ledgers(self.config):
            self._agents.agent(agent_class, is_on_record=True)
        async with self._erasing:
            for agent in self._agents.by_name.values():
                await agent.ready()
            present = dict(self._agents.by_name)
            with ErasureGuards(subject_id, {name: agent.supervisor.erasure for name, agent in present.items()}) as guard:
                await guard.begin()
                async with open_stores(
                    self.config,
                    clock=self._shared.injected.clock,
                    sealer=self._shared.sealer,
                    supervisors={name: agent.ledgers.ho2m for name, agent in present.items()},
                    opened=tuple(self._shared.memories.values()),
                    content=self._shared.content,
                ) as stores:
                    guard.is_erasing = True
                    return await erase(subject_id, stores, self._shared.injected.clock)

    async def _finish_erasures(self) -> None:
        """Completes the erasures that a crash interrupted."""
        if self._shared.sealer is None:
            return
        for begun in await anyio.to_thread.run_sync(self._shared.sealer.keyring.erasures):
            try:
                await self.erase_subject(begun.subject_id)
            except KitchenerError as error:  # the key stays unusable, and other subjects' turns can run
                _log.warning("erasure not finished", subject_id=begun.subject_id, problem=str(error))
                for agent in self._agents.by_name.values():
                    agent.supervisor.erasure.bar(begun.subject_id)

    async def _spent_since(self, subject_id: str, since: datetime) -> Spent:
        """A subject's use since a given time, in all agent classes."""
        total = NOTHING
        for agent_class in supervisors_ledgers(self.config):
            agent = self._agents.agent(agent_class, is_on_record=True)
            await agent.ready()
            total = total.plus(await spent_since(agent.ledgers, subject_id, since, self.config.router.prices))
        return total

    def statistics(self) -> RuntimeStatistics:
        """The present state of queues and workers, and the use of providers so far, for monitoring."""
        mailboxes: dict[str, dict[str, LaneStatistics]] = {"gateway": self._shared.gateway.statistics()}
        mailboxes.update((agent_class, agent.mailbox.statistics()) for agent_class, agent in self._agents.by_name.items())
        return {
            "running_turns": self._shared.limiter.running,
            "waiting_turns": self._shared.limiter.waiting,
            "turns": self._shared.limiter.statistics(),
            "pending_consolidations": sum(agent.background.pending for agent in self._agents.by_name.values()),
            "commits": {name: agent.ledgers.commit_times() for name, agent in self._agents.by_name.items() if agent.is_open},
            "mailboxes": mailboxes,
            "usage": self._shared.gateway.usage(),
            "usage_by_model": self._shared.gateway.usage_by_model(),
            "failures_by_model": self._shared.gateway.failures_by_model(),
            "open_circuits": self._shared.gateway.open_circuits(),
            "mcp_servers": self._shared.servers.statistics(),
        }

    async def _listen(self) -> None:
        """Starts to listen for commands about this root."""
        self._listener = AdminListener(self.admin_root, self.config.admin, grace_s=self.config.limits.shutdown_grace_s)
        await self._shared.tasks.start(self._listener.run)

    def _abandon(self) -> None:
        """Makes what was written durable and releases the root, without the event loop, which has been closed. Blocks."""
        if self._listener is not None:
            self._listener.abandon()
        self._agents.abandon()

    async def _close(self) -> None:
        if self._listener is not None:
            await self._listener.close()
        await self._agents.close()


@on_own_loop(Runtime._abandon)
@asynccontextmanager
async def open_runtime(  # noqa: PLR0913  what a program may bring along; all but the settings by keyword
    config: RuntimeConfig | LoadedConfig | str | Path | None = None,
    *,
    root: str | Path | None = None,
    tools: Sequence[Callable[..., object]] = (),
    providers: Mapping[str, Provider] | None = None,
    degraded_call: DegradedCall | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    admin_socket: bool | None = None,
    embeddings: EmbeddingProvider | None = None,
    telemetry: Telemetry | None = None,
    lock_wait_s: float = 0.0,
) -> AsyncIterator[Runtime]:
    """Starts a Kitchener and closes it when the block ends.

    Args:
        config: path of a settings file, what `load_config` returned, or a `RuntimeConfig`, which reads no file; None:
            `./kitchener.toml` as for the commands, or if it does not exist the offline model and ledgers under `./.kitchener`
        root: overrides `plane_root`
        tools: functions marked with `@tool`; each agent class's setting `tools` says which of them it may use
        providers: further providers by id, besides those in the configuration
        degraded_call: answers a message if the executor itself fails; each use is recorded as a violation. None: the gateway
            is asked directly
        clock: the time of day; None: the system clock
        ids: source of new session ids; None: random ids
        admin_socket: whether commands such as `kitchener subject erase` can change the root through this runtime, over a local
            socket that only the owner can use. None: as `[admin] socket` says; without that setting, no
        embeddings: computes vectors of texts, by which turns are also ranked; None: as `[embeddings]` says, if it is set
        telemetry: an `OpenTelemetry` of `kitchener.telemetry` with its own providers; None: as `[telemetry] traces` says
        lock_wait_s: how long to wait for another process to release the root, seconds, as at a restart whose old process still
            finishes its turns

    Raises:
        ConfigError: a setting is wrong; names file, key and value
        LedgerError: a ledger is damaged, locked, or cannot be at its path
        SigningError: the configured signing key cannot be used
        ActorStopped: at the end of the block, if an actor failed too often; its last failure is the cause
        CallerError: the block has ended in another task than it began in, and that one still runs; or on another event loop
    """
    known, time = {} if providers is None else providers, SystemClock() if clock is None else clock
    injected = RuntimeArguments(checked_tools(tools), known, degraded_call, time, ids, admin_socket, embeddings, telemetry)
    check_wait(lock_wait_s)
    loaded = loaded_settings(config, root)
    check_config(loaded.config, source=loaded.source, given=tuple(injected.providers))
    if lock_wait_s:
        await wait_until_released(loaded.config, lock_wait_s)
    body_error: Exception | None = None
    own_task = OwnTask()
    try:
        async with anyio.create_task_group() as tasks:
            opening = _OwnTaskStatus()
            holding = partial(own_task.keeps, partial(_hold, loaded, injected, opening.scope), task_status=opening)
            tasks.start_soon(holding, name="the runtime")
            runtime = await opening.runtime()
            try:
                await runtime._agents.open_configured()
                await runtime._finish_erasures()
                if loaded.config.admin.socket if admin_socket is None else admin_socket:
                    await runtime._listen()
                yield runtime
            except Exception as error:  # noqa: BLE001  raised again below, outside the task group, which would wrap it
                body_error = error
            finally:
                await _shut_down(runtime, loaded.config.limits)
    except (BaseExceptionGroup, RuntimeError) as error:
        if (only := await own_task.explained(error, body_error)) is not None:
            raise only from only.__cause__
    if body_error is not None:
        raise body_error


class _OwnTaskStatus(TaskStatus["Runtime"]):
    """A runtime that a task opens. `TaskGroup.start` waits for ever if it is cancelled, because that task is shielded."""

    def __init__(self) -> None:
        self.scope: anyio.CancelScope = anyio.CancelScope(shield=True)
        """Of the task that opens the runtime, and keeps it open."""
        self._opened = list[Runtime]()
        self._is_open = anyio.Event()

    def started(self, value: "Runtime | None" = None) -> None:
        """The runtime is open."""
        assert value is not None
        self._opened.append(value)
        self._is_open.set()

    async def runtime(self) -> "Runtime":
        """Returns the runtime. Cancelled, it ends the task: what is open is closed again."""
        try:
            await self._is_open.wait()
        except BaseException:
            self.scope.cancel()
            raise
        return self._opened.pop()


async def _shut_down(runtime: Runtime, limits: LimitsConfig) -> None:
    """Closes the runtime within the grace periods, and ends the task that holds the runtime in any case."""
    try:
        with anyio.move_on_after(2 * (limits.shutdown_grace_s + limits.abort_grace_s), shield=True):
            await runtime._close()
    finally:
        runtime._shared.scope.cancel()


async def _hold(
    loaded: LoadedConfig, injected: RuntimeArguments, scope: anyio.CancelScope, *, task_status: TaskStatus[Runtime]
) -> None:
    """Opens all components of a runtime and keeps them open until it is closed.

    Shielded, so that a cancelled program still closes its runtime in order and records the end of each turn.
    """
    config, limits = loaded.config, loaded.config.limits
    with (
        scope,
        named_source(loaded.source),
        chosen_telemetry(config.telemetry, injected.telemetry) as telemetry,
    ):
        async with build_providers(config.router, given=tuple(injected.providers)) as known:
            gateway = _gateway_of(config, {**known, **injected.providers}, telemetry)
            await anyio.to_thread.run_sync(check_place, config)
            sealer, signer = sealer_of(config), await anyio.to_thread.run_sync(signer_of, loaded)
            async with (
                open_memories(config, clock=injected.clock, sealer=sealer) as memories,
                open_embeddings(config, given=injected.embeddings) as vectors,
                gateway.open(),
                anyio.create_task_group() as tasks,
            ):
                limiter = TurnLimiter(limits.max_running_turns, limits.max_waiting_turns)
                text = ActiveText(limits.max_active_chars)
                content = ContentStore(config.plane_root, sealer, limits.max_content_bytes)
                similar = None
                if vectors is not None:
                    similar = EmbeddingComparer(vectors, config.embeddings, index_dir(config), sealer)
                book = SpendingBook(config.spending, config.router.prices, injected.clock)
                metered = MeteredGateway(gateway, gateway.candidates, book, gateway.with_thoughts)
                models = metered if config.spending.is_on else gateway
                servers = await open_servers(config.mcp, tasks)
                shared = RuntimeComponents(
                    config=config,
                    source=loaded.source,
                    injected=injected,
                    gateway=gateway,
                    models=models,
                    limiter=limiter,
                    active_text=text,
                    sealer=sealer,
                    signer=signer,
                    content=content,
                    embeddings=similar,
                    memories=memories,
                    servers=servers,
                    telemetry=telemetry,
                    tasks=tasks,
                    scope=scope,
                )
                runtime = Runtime(shared)
                book.earlier = runtime._spent_since
                task_status.started(runtime)
                with ends_when_told("the task that holds the runtime"):
                    await anyio.sleep_forever()


def _gateway_of(config: RuntimeConfig, providers: Mapping[str, Provider], telemetry: Telemetry | None) -> LLMGateway:
    """The gateway to these providers. With telemetry, it also reports each attempt."""
    if telemetry is None:
        return LLMGateway(config.router, providers, limits=config.limits)
    return telemetry.gateway(config.router, providers, config.limits)


def tune_gc() -> None:
    """Tunes the garbage collector for a process that only serves turns.

    Later collections skip the objects that exist now. Collections become rare, so most objects of a turn are freed before a
    collection examines them. An application or server calls this once, after loading; the library never calls it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 50)
