"""Keeps one MCP server connected, calls its tools, and tells when its list of tools changes.

One task opens a connection, uses it until it is lost, closes it, and opens another one after a pause. Calls run in the tasks
of their callers and share the connection. A call without an answer has an unknown outcome: it is made again only if the tool
says that this has no further effect. Nothing tells that a server over HTTP is gone, so its list of tools is read now and then,
and after each call without an answer. `connection.py` speaks the protocol. Explained in `docs/mcp.md`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

import anyio
from anyio.abc import TaskStatus
from typing_extensions import TypedDict  # pydantic reads no other on Python 3.11

from kitchener.cancellation import ended_by, failed_alone
from kitchener.config.mcp_servers import McpServerConfig
from kitchener.logs import get_logger
from kitchener.mcp.call_results import McpCallFailed, responses_to, result_of
from kitchener.mcp.connection import Connection, Secrets, ToolList, open_connection
from kitchener.mcp.connection_errors import (
    AnswerTooLarge,
    ConnectionEnded,
    ConnectionLost,
    RequestNotTaken,
    RequestRejected,
    ServerRefused,
    first_error_text,
)
from kitchener.mcp.connection_state import ConnectionState
from kitchener.mcp.definitions import ListedTool, RefusedTool, read_tools, source_of
from kitchener.records.tools.runnable_tool import ToolIdentity
from kitchener.records.tools.server_tools import ServerTool
from kitchener.records.tools.tool_context import ToolContext

_log = get_logger(__name__)

ServerState = Literal["waiting", "connecting", "connected", "silent", "failed"]
"""`waiting`: for its first use, or for the pause after a failure. `silent`: a command that runs and does not answer. `failed`:
given up after `max_restarts` failures in a row; a server over HTTP is still asked once in `backoff_max_s`."""

_RELIST_PAUSE_S: Final = 1.0
"""Least time between two listings of tools. A server may say at any rate that they changed."""
_LEAST_TTL_S: Final = 60.0
"""Least time after which a list is read again because it is out of date."""
_MOST_TOLD: Final = 16
"""How many left-out tools the log names; of further ones it gives the number."""
Publish = Callable[[Sequence[ServerTool]], None]
"""Puts the tools of a server in place."""


@dataclass(frozen=True, slots=True)
class ServerReport:
    """What is known of a server."""

    label: str
    state: ServerState
    problem: str
    """Why it is not connected; empty where it is."""
    server: str
    """Name and version, as the server says; empty while it was never connected."""
    protocol: str
    tools: tuple[ToolIdentity, ...]
    refused: tuple[RefusedTool, ...]
    running: int
    """Calls that run now."""
    waiting: int
    """Calls that wait for a free place."""
    starts: int
    """Connections so far."""


class ServerStatistics(TypedDict):
    """The state of a server and its counts, for monitoring."""

    state: ServerState
    problem: str
    """Why it is not connected; empty where it is."""
    running: int
    """Calls that run now."""
    waiting: int
    """Calls that wait for a free place."""
    starts: int
    """Connections so far."""
    tools: int
    """Tools that it offers."""
    refused: int
    """Tools that were left out."""


@dataclass(slots=True)
class _Known:
    """What the server said about itself over the newest connection."""

    server: str = ""
    protocol: str = ""
    tools: tuple[ServerTool, ...] = ()
    refused: tuple[RefusedTool, ...] = ()
    hashes: dict[str, str] = field(default_factory=dict)


class McpServer:
    """One server. `run` is its task.

    Args:
        label: our name of it
        settings: its settings
        secrets: the values of its references
    """

    def __init__(self, label: str, settings: McpServerConfig, secrets: Secrets) -> None:
        self.label, self.settings, self.source = label, settings, source_of(label)
        self._secrets = secrets
        self._state: ServerState = "waiting"
        self._problem = ""
        self._known = _Known()
        self._publish: list[Publish] = []
        self._connection: Connection | None = None
        self._changed = anyio.Event()
        """Set and replaced at each change of state."""
        self._wanted = anyio.Event()
        self._settled = anyio.Event()
        """Set when the first connection came about or failed."""
        self._places = anyio.CapacityLimiter(settings.max_calls)
        self._running, self._starts = 0, 0
        self._list_problem = ""
        """Why the list could not be read again, as it was logged last."""
        if settings.start == "runtime":
            self._wanted.set()

    def attach(self, publish: Publish) -> None:
        """Calls `publish` with the tools now, and whenever they change."""
        self._publish.append(publish)
        publish(self._known.tools)

    async def settle(self) -> None:
        """Connects if need be. Returns when the first connection came about or failed, or `connect_timeout_s` is over."""
        self._wanted.set()
        with anyio.move_on_after(self.settings.connect_timeout_s):
            await self._settled.wait()

    async def is_decided(self) -> None:
        """Returns when the server is not being connected: it is, or it failed."""
        while self._state == "connecting":
            changed = self._changed
            await changed.wait()

    def report(self) -> ServerReport:
        """What is known of the server now."""
        known, waiting = self._known, self._places.statistics().tasks_waiting
        return ServerReport(
            self.label,
            self._state,
            self._problem,
            known.server,
            known.protocol,
            tuple(each.identity for each in known.tools),
            known.refused,
            self._running,
            waiting,
            self._starts,
        )

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keeps the server connected until it is cancelled. A command that was given up is not started again."""
        task_status.started()
        await self._wanted.wait()
        settings, failures = self.settings, 0
        pause_s = settings.backoff_initial_s
        while True:
            if self._state != "failed":
                self._tell("connecting", self._problem)
            problem, held_s = await self._connect_once()
            if held_s > settings.backoff_max_s:
                failures, pause_s = 0, settings.backoff_initial_s
            failures += 1
            if failures >= settings.max_restarts:
                self._give_up(problem)
                if settings.url is None:
                    return
                pause_s = settings.backoff_max_s
            else:
                _log.warning("MCP server not connected", server=self.label, problem=problem, next_try_s=pause_s)
                self._tell("waiting", problem)
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, settings.backoff_max_s)

    async def _connect_once(self) -> tuple[str, float]:
        """Opens a connection and uses it until it is lost. Returns why it is, and for how long it held, seconds."""
        problem, state, connected_at = "", ConnectionState(), math.inf
        try:
            with ended_by(anyio.CancelScope(deadline=anyio.current_time() + self.settings.connect_timeout_s)) as scope:
                async with open_connection(self.settings, self._secrets, state) as connection:
                    listed = await _first_list(connection)
                    scope.deadline = math.inf
                    self._take(connection, listed)
                    connected_at = anyio.current_time()
                    problem = await self._use(connection, listed.ttl_s)
        except BaseException as error:  # of the library too, and in groups; it ends this connection only
            if not await failed_alone(error, in_own_task=True):
                raise
            problem = problem or first_error_text(error)
        finally:
            self._connection = None
        if scope.cancel_called:
            problem = state.cause_now(self._told_of_silence())
        self._settled.set()
        return problem, max(0.0, min(state.lost_at, anyio.current_time()) - connected_at)

    def _told_of_silence(self) -> str:
        return f"it did not list its tools within connect_timeout_s = {self.settings.connect_timeout_s:g}"

    async def _use(self, connection: Connection, ttl_s: float | None) -> str:
        """Follows changes of the list until the connection is lost and its calls have ended; returns why it was lost."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow, connection)
            tasks.start_soon(self._list_again, connection, ttl_s)
            await connection.state.lost.wait()
            tasks.cancel_scope.cancel()
        self._connection = None
        problem = await connection.state.cause("the connection was closed")
        self._tell("waiting", problem)
        with anyio.move_on_after(self.settings.call_timeout_s):  # over HTTP, one call may fail and others continue
            while self._running:
                changed = self._changed
                await changed.wait()
        return problem

    async def _follow(self, connection: Connection) -> None:
        """Lets the server report changes of its tools. After each stream it reads the list again, in case one was missed."""
        is_told = False
        while True:
            pause_s = _RELIST_PAUSE_S
            try:
                if not await connection.follow_changes():
                    return
            except (ConnectionLost, ServerRefused) as error:
                if not is_told:
                    _log.info("MCP server does not report changes of its tools", server=self.label, problem=str(error))
                if not isinstance(error, ConnectionLost):
                    return
                is_told, pause_s = True, max(_RELIST_PAUSE_S, self.settings.backoff_max_s)
            await anyio.sleep(pause_s)
            connection.state.tools_changed.set()

    async def _list_again(self, connection: Connection, ttl_s: float | None) -> None:
        """Reads the list of tools again when it may have changed or is out of date, or to see whether the server is there."""
        while True:
            with anyio.move_on_after(self._next_list_s(ttl_s)):
                await connection.state.tools_changed.wait()
            listed = await self._list(connection)
            if listed is not None:
                ttl_s, self._list_problem = listed.ttl_s, ""
                self._take(connection, listed)
            await anyio.sleep(_RELIST_PAUSE_S)

    def _next_list_s(self, ttl_s: float | None) -> float:
        """The time after which the list is read again, seconds."""
        out_of_date_s = max(_LEAST_TTL_S, ttl_s) if ttl_s is not None else math.inf
        is_in_doubt = self.settings.url is not None or self._state == "silent"
        return min(out_of_date_s, max(_RELIST_PAUSE_S, self.settings.backoff_max_s) if is_in_doubt else math.inf)

    async def _list(self, connection: Connection) -> ToolList | None:
        """Reads the list; None: there is none. Ends the connection to a server over HTTP that did not answer."""
        try:
            with anyio.fail_after(self.settings.connect_timeout_s):
                return await connection.list_tools()
        except TimeoutError:
            problem, is_gone = self._told_of_silence(), self.settings.url is not None
            if not is_gone:  # it may be busy with a call that was given up, and is not stopped for that
                self._tell("silent", problem)
        except (AnswerTooLarge, ConnectionLost, ServerRefused) as error:
            problem = str(error)
            is_gone = self.settings.url is not None and isinstance(error, ConnectionLost | RequestRejected)
        if is_gone:
            connection.state.lose(problem)
        elif not connection.state.lost.is_set() and problem != self._list_problem:
            _log.warning("MCP server does not list its tools", server=self.label, problem=problem)
            self._list_problem = problem
        return None

    def _take(self, connection: Connection, listed: ToolList) -> None:
        """Puts the listed tools in place, and tells what changed since the last list."""
        found, refused = read_tools(self.label, self.settings, listed.tools)
        tools = tuple(ServerTool(each.definition, partial(self._call, each), self.settings.call_timeout_s) for each in found)
        hashes = {each.tool_id: each.identity.definition_hash for each in tools}
        before, is_first = self._known, connection is not self._connection
        self._known = _Known(connection.server, connection.protocol, tools, tuple(refused), hashes)
        if is_first:
            self._connection = connection
            self._starts += 1
        if before.refused != self._known.refused:
            for each in refused[:_MOST_TOLD]:
                _log.warning("MCP tool left out", server=self.label, tool=each.name, problem=each.reason)
            if len(refused) > _MOST_TOLD:
                _log.warning("more MCP tools left out", server=self.label, count=len(refused) - _MOST_TOLD)
        if hashes != before.hashes:
            changed = sorted(name for name in hashes.keys() & before.hashes if hashes[name] != before.hashes[name])
            _log.info(
                "MCP tools in place",
                server=self.label,
                added=sorted(hashes.keys() - before.hashes.keys()),
                removed=sorted(before.hashes.keys() - hashes.keys()),
                changed=changed,
            )
            for publish in self._publish:
                publish(tools)
        self._tell("connected", "")
        self._settled.set()

    def _give_up(self, problem: str) -> None:
        if self._state != "failed":
            _log.error("MCP server given up", server=self.label, problem=problem, failures=self.settings.max_restarts)
        self._known = _Known(self._known.server, self._known.protocol)
        for publish in self._publish:
            publish(())
        self._tell("failed", problem)

    def _tell(self, state: ServerState, problem: str) -> None:
        self._state, self._problem = state, problem
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def _call(self, tool: ListedTool, arguments: Mapping[str, object], context: ToolContext) -> object:
        """Calls a tool and returns its result, or a `ToolQuestion`.

        Raises:
            McpCallFailed: the call failed; the text says whether it may have had an effect
        """

        def why_no_place() -> str:
            return f"server {self.label!r} had no place free (`max_calls` = {self.settings.max_calls})"

        def why_not_connected() -> str:
            return f"server {self.label!r} was not connected ({self._problem or 'it has not answered yet'})"

        traits = ToolIdentity.of(tool.definition).traits
        may_repeat, lost = traits.read_only or traits.idempotent, None
        call = partial(self._call_once, tool, arguments, context)
        context.wait.begin(why_no_place)
        async with self._places:
            context.wait.begin(why_not_connected)
            try:
                return await call()
            except RequestNotTaken:
                context.wait.begin(why_not_connected)
            except ConnectionLost as error:
                if not may_repeat:
                    raise _unknown(self.label, error) from error
                lost = error
            except RequestRejected as error:
                raise _undone(self.label, error) from error
            try:  # nothing was done, or it has no further effect, as the server says and its settings believe
                return await call()
            except (RequestNotTaken, RequestRejected) as error:
                raise (_undone(self.label, error) if lost is None else _unknown(self.label, lost)) from error
            except ConnectionLost as error:
                raise _unknown(self.label, error) from error

    async def _call_once(self, tool: ListedTool, arguments: Mapping[str, object], context: ToolContext) -> object:
        connection = await self._connected()
        context.wait.end()
        answer = context.answer
        responses, request_state = responses_to(answer) if answer is not None else (None, None)
        self._running += 1
        try:
            found = await connection.call(tool.name, arguments, partial(_report, context), responses, request_state)
        except (RequestNotTaken, RequestRejected):
            raise
        except ServerRefused as error:
            if answer is not None:  # the server keeps the state of its questions for some minutes, or until it ends
                text = f"server {self.label!r} no longer takes the answer: {error}; call the tool again to be asked anew"
                raise McpCallFailed(text) from error
            raise McpCallFailed(f"server {self.label!r} refused the call: {error}") from error
        except AnswerTooLarge as error:
            raise McpCallFailed(
                f"the tool has run, but {error}; max_result_bytes = {self.settings.max_result_bytes:,}"
            ) from error
        except ConnectionEnded as error:
            raise ConnectionEnded(await connection.state.cause(str(error))) from error
        except anyio.get_cancelled_exc_class():
            connection.state.tools_changed.set()  # it may hang
            raise
        finally:
            self._running -= 1
            if not self._running and connection.state.lost.is_set():
                self._tell(self._state, self._problem)
        return result_of(found, self.settings.max_result_bytes)

    async def _connected(self) -> Connection:
        """The connection, or the next one, however long that takes. Nothing was sent while this waits.

        Raises:
            RequestNotTaken: the server was given up
        """
        self._wanted.set()
        while (connection := self._connection) is None or connection.state.lost.is_set():
            if self._state == "failed":
                raise RequestNotTaken(self._problem)
            changed = self._changed
            await changed.wait()
        return connection


async def _report(context: ToolContext, progress: float, total: float | None, message: str | None) -> None:
    await context.progress(progress, total, message)


def _undone(label: str, error: Exception) -> McpCallFailed:
    return McpCallFailed(f"the call did not reach server {label!r}, and nothing was done: {error}")


def _unknown(label: str, error: ConnectionLost) -> McpCallFailed:
    return McpCallFailed(
        f"outcome unknown: server {label!r} gave no result ({error});"
        " the call may have had its effect, so check before you repeat it"
    )


async def _first_list(connection: Connection) -> ToolList:
    """The tools of a server that was started or reached just now.

    Raises:
        AnswerTooLarge, ConnectionLost, ServerRefused: there is no list
    """
    try:
        return await connection.list_tools()
    except ConnectionLost as error:
        raise ConnectionLost(await connection.state.cause(str(error))) from error
    except RequestRejected:
        raise
    except ServerRefused as error:
        raise ServerRefused(f"it does not list its tools: {error}") from error


__all__ = ["McpServer", "ServerReport", "ServerState", "ServerStatistics"]
