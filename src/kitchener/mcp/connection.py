"""Speaks the protocol with one server, over a command's input and output or over HTTP, by the extra `mcp`.

One connection lives for one start of a server. `server.py` opens a new one after a failure. This is the only module that knows
the vendor's library, and it offers servers neither roots nor sampling nor logging. Explained in `docs/mcp.md`.
"""

import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Final

import anyio
import orjson
from pydantic import TypeAdapter, ValidationError

from kitchener.config.mcp_servers import McpServerConfig
from kitchener.errors import ConfigError
from kitchener.errors.nested import first_error
from kitchener.errors.root import CONFIGURATION
from kitchener.extras import needs
from kitchener.mcp.command import StrayLine, open_command
from kitchener.mcp.connection_errors import (
    LAST_WORDS_CHARS,
    ConnectionEnded,
    ConnectionLost,
    RequestRejected,
    ServerRefused,
    first_error_text,
    told_of_command,
)
from kitchener.mcp.connection_state import ConnectionState
from kitchener.mcp.http_transport import bounded_transport
from kitchener.mcp.message_values import MAX_VALUES, holds_too_many
from kitchener.mcp.protocol_errors import TOO_LARGE, meaning_of
from kitchener.mcp.stream_wrapper import StreamWrapper
from kitchener.mcp.untraced_stream import UntracedStream
from kitchener.plain_names import error_text

if TYPE_CHECKING:
    import mcp
    import mcp_types
    from mcp.client import Transport
    from mcp.client._transport import ReadStream, TransportStreams
    from mcp.client.session import ElicitationFnT
    from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
    from mcp.shared.dispatcher import ProgressFnT
    from mcp.shared.message import SessionMessage

_MAX_PAGES: Final = 64
"""Most pages of a list of tools. A server could list pages without end."""
_MAX_LISTED: Final = 10_000
"""Most tools of a list that are read."""
_MAX_SERVER_CHARS: Final = 100
_CHUNK: Final = 65_536
_MAX_MESSAGE_FACTOR: Final = 2
"""How much larger than a result a message on the wire may be. JSON repeats a structured result as text."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """The values of a server's references."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """With the bearer token."""


@dataclass(slots=True)
class ToolList:
    """The tools of a server at one time."""

    tools: list[Mapping[str, object]]
    """As JSON objects of the protocol."""
    ttl_s: float | None
    """How long the list holds, as the server says, seconds; None: it does not say."""


class Connection:
    """A connection that is open. Calls of several tasks run side by side.

    Attributes:
        state: what is known of it besides its messages
    """

    def __init__(self, library: "_Library", client: "mcp.Client", state: ConnectionState) -> None:
        self._library, self._client, self.state = library, client, state

    @property
    def server(self) -> str:
        """Name and version of the server, as it says, cut at 100 characters; may be empty."""
        info = self._client.server_info
        return " ".join(f"{info.name} {info.version}".split())[:_MAX_SERVER_CHARS] if info is not None else ""

    @property
    def protocol(self) -> str:
        """Version of the protocol that both speak."""
        return str(self._client.protocol_version)

    async def list_tools(self) -> ToolList:
        """Returns the server's tools, at most 10,000.

        Raises:
            AnswerTooLarge, ConnectionLost, ServerRefused: there is no list
        """
        found: list[Mapping[str, object]] = []
        cursor, ttl_ms = None, None
        for _ in range(_MAX_PAGES):
            with self._translated():
                page = await self._client.list_tools(cursor=cursor, cache_mode="bypass")
            found += self.state.listed
            cursor, ttl_ms = page.next_cursor, page.ttl_ms
            if cursor is None or len(found) >= _MAX_LISTED:
                break
        return ToolList(found[:_MAX_LISTED], ttl_ms / 1_000 if ttl_ms else None)

    async def call(
        self,
        name: str,
        arguments: Mapping[str, object],
        on_progress: "ProgressFnT | None",
        responses: Mapping[str, object] | None = None,
        request_state: str | None = None,
    ) -> Mapping[str, object]:
        """Calls a tool and returns the server's answer as a JSON object of the protocol.

        Cancelling this tells the server.

        Raises:
            RequestNotTaken: the server did not get the call
            AnswerTooLarge: the tool has run
            ConnectionLost: there is no answer; whether the tool took effect is unknown
            ServerRefused: the server refused the request, or its answer has another form than the protocol's
        """
        params = self._library.call_params.model_validate(
            {"name": name, "arguments": dict(arguments), "input_responses": responses, "request_state": request_state}
        )
        request = self._library.call_request(params=params)
        with self._translated():
            # Not `call_tool`, which also checks the result against a schema of the server's, for as long as that takes.
            answer = await self._client.session.send_request(request, self._library.answer, progress_callback=on_progress)
        return answer.model_dump(mode="json", by_alias=True, exclude_none=True)

    async def follow_changes(self) -> bool:
        """Sets `state.tools_changed` when the server says so, until its stream ends. Older servers say so without being asked.

        Returns whether the stream can be opened again; False: the server offers none.
        """
        capabilities = self._client.server_capabilities
        if capabilities.tools is None or not capabilities.tools.list_changed:
            return False
        with self._translated():
            try:
                async with self._client.listen(tools_list_changed=True) as subscription:
                    async for _ in subscription:
                        self.state.tools_changed.set()
            except self._library.listen_unsupported:
                return False
            except self._library.subscription_lost:
                pass
        return True

    def _translated(self) -> "_Translated":
        return _Translated(self._library, self.state)


class _Translated:
    """Turns the library's errors into this package's. Where the server may be gone, its list of tools is read again."""

    def __init__(self, library: "_Library", state: ConnectionState) -> None:
        self._library, self._state = library, state

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, self._library.error):
            meaning = self._library.meaning(error)
            if isinstance(meaning, ConnectionEnded):
                self._state.lose(str(meaning))
            elif isinstance(meaning, ConnectionLost | RequestRejected):
                self._state.tools_changed.set()
            raise meaning from error
        if isinstance(error, ValueError):  # of an answer that is not as the protocol says
            raise ServerRefused(f"its answer is not as the protocol says: {_misfit(error)[:LAST_WORDS_CHARS]}") from error


def _misfit(error: ValueError) -> str:
    """What is wrong with an answer, without the answer."""
    if not isinstance(error, ValidationError):
        return error_text(error)
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    deepest = max(problems, key=lambda each: len(each["loc"]))  # of the form that it has most of
    return f"{'.'.join(map(str, deepest['loc'])) or 'the whole'}: {deepest['msg']}"


@asynccontextmanager
async def open_connection(settings: McpServerConfig, secrets: Secrets, state: ConnectionState) -> AsyncIterator[Connection]:
    """Starts or reaches a server and agrees on the protocol; ends the connection, and a started command, with the block.

    Enter and leave it in one task, without a deadline of its own in between.

    Args:
        settings: the server's settings
        secrets: the values of its references
        state: a new one, which says why there is no connection where this is cancelled

    Raises:
        ConnectionLost: it cannot be started or reached, refuses the token, or does not speak the protocol
    """
    library = library_of_protocol()

    async def on_message(message: object) -> None:
        if isinstance(message, library.list_changed):
            state.tools_changed.set()
        await anyio.lowlevel.checkpoint()

    async with AsyncExitStack() as stack:
        if settings.command is not None:
            transport = await _command(library, stack, settings, secrets, state)
        else:
            state.is_silent.set()
            transport = await _address(library, stack, settings, secrets)
        client = library.client(
            _watched(transport, state, library),
            message_handler=on_message,
            client_info=library.implementation(name="kitchener", version="1"),
            elicitation_callback=_decline(library),
        )
        try:
            await stack.enter_async_context(client)
        except Exception as error:  # of the library, of its transport, and of groups of both
            if state.errors is not None:
                state.errors.close()  # also where no command was started, which would be the only other one to write
            raise ConnectionLost(await state.cause(_told_of_start(error, settings, library))) from error
        yield Connection(library, client, state)


def _told_of_start(error: Exception, settings: McpServerConfig, library: "_Library") -> str:
    """Why a server could not be started or reached."""
    first = first_error(error)
    if isinstance(first, library.error):
        meaning = library.meaning(first)
        if isinstance(meaning, ConnectionEnded) and settings.command is not None:
            return "it ended, or closed its output, before it answered"
        is_own = isinstance(meaning, RequestRejected) or not isinstance(meaning, ServerRefused)
        return str(meaning) if is_own else f"it refused the handshake: {meaning}"
    if settings.command is not None and isinstance(first, OSError):
        return told_of_command(first, settings)
    return first_error_text(error)


def _decline(library: "_Library") -> "ElicitationFnT":
    """Answers servers that wait for an answer within a call. A person may answer much later, so the answer is no."""

    async def decline(context: object, params: object) -> "mcp_types.ElicitResult":
        await anyio.lowlevel.checkpoint()
        return library.elicit_result(action="decline")

    return decline


async def _command(
    library: "_Library", stack: AsyncExitStack, settings: McpServerConfig, secrets: Secrets, state: ConnectionState
) -> "Transport":
    reader, writer = os.pipe()
    stack.callback(os.close, reader)  # after the task that reads has ended
    os.set_blocking(reader, False)
    tasks = await stack.enter_async_context(anyio.create_task_group())
    state.errors = stack.enter_context(os.fdopen(writer, "w"))
    stack.callback(tasks.cancel_scope.cancel)
    tasks.start_soon(_keep_last_words, reader, state)
    return open_command(
        library.read,
        [str(settings.command), *settings.args],
        unreadable=library.unreadable,
        cwd=settings.cwd,
        env={**library.inherited(), **secrets.env},
        errors=state.errors,
        limit=_MAX_MESSAGE_FACTOR * settings.max_result_bytes,
    )


async def _keep_last_words(reader: int, state: ConnectionState) -> None:
    """Reads what a command writes to its standard error, so that it never waits for a reader, and keeps the newest lines."""
    while True:
        await anyio.wait_readable(reader)
        data = os.read(reader, _CHUNK)
        if not data:
            state.is_silent.set()
            return
        state.last_words.extend(data.decode("utf-8", "replace")[-LAST_WORDS_CHARS:].splitlines())


async def _address(library: "_Library", stack: AsyncExitStack, settings: McpServerConfig, secrets: Secrets) -> "Transport":
    import httpx2

    limit = _MAX_MESSAGE_FACTOR * settings.max_result_bytes
    client = httpx2.AsyncClient(
        headers={**secrets.headers, "Accept-Encoding": "identity"},
        timeout=httpx2.Timeout(settings.connect_timeout_s, read=settings.call_timeout_s),
        transport=bounded_transport(library.closed, limit),
        trust_env=False,
    )
    await stack.enter_async_context(client)
    return library.streamable_http_client(str(settings.url), http_client=client, max_sse_event_size=limit)


@asynccontextmanager
async def _watched(transport: "Transport", state: ConnectionState, library: "_Library") -> AsyncIterator["TransportStreams"]:
    """A transport that reports when it can no longer be read, and sends nothing of the program's trace."""
    async with transport as (incoming, outgoing):
        if state.errors is not None:
            state.errors.close()  # the command has its own end of the pipe, and nothing is left to read when it ends
        sent: UntracedStream[SessionMessage] = UntracedStream(outgoing)
        yield _WatchedStream(incoming, state, library), sent


class _WatchedStream(StreamWrapper["ReadStream[SessionMessage | Exception]"]):
    """A stream of messages that keeps each page of tools as it came, and tells when it ends."""

    def __init__(self, stream: "ReadStream[SessionMessage | Exception]", state: ConnectionState, library: "_Library") -> None:
        super().__init__(stream)
        self._state, self._library = state, library

    async def receive(self) -> "SessionMessage | Exception":
        return await self._stream.receive()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state.lose()
        await super().__aexit__(kind, error, trace)

    def __aiter__(self) -> "_WatchedStream":
        return self

    async def __anext__(self) -> "SessionMessage | Exception":
        try:
            item = await self._stream.__anext__()
        except BaseException:  # its end, or an error after which nothing follows
            self._state.lose()
            raise
        if isinstance(item, StrayLine):
            self._state.note_stray_line(item.text)
        item = self._bounded(item)
        result = getattr(getattr(item, "message", None), "result", None)
        if isinstance(result, dict) and isinstance(listed := result.get("tools"), list) and "content" not in result:
            # The library refuses a whole page for one tool that is not as the protocol says, so it sees only what it needs.
            self._state.listed = [each if isinstance(each, dict) else {} for each in listed]
            result["tools"] = [found for each in self._state.listed if (found := _least(each)) is not None]
        return item

    def _bounded(self, item: "SessionMessage | Exception") -> "SessionMessage | Exception":
        """The message, or an error in place of an answer with too many values. One of a command was looked at before."""
        message = getattr(item, "message", None)
        if not holds_too_many(getattr(message, "result", None) or getattr(message, "params", None)):
            return item
        call_id = getattr(message, "id", None) if hasattr(message, "result") else None
        if type(call_id) is not int:
            return ValueError(f"a message holds more than {MAX_VALUES:,} values")  # the session passes it over
        error = {"code": self._library.unreadable, "message": f"{TOO_LARGE} {MAX_VALUES:,} values"}
        return self._library.read(orjson.dumps({"jsonrpc": "2.0", "id": call_id, "error": error}))


def _least(tool: Mapping[str, object]) -> dict[str, object] | None:
    """What the library needs of a listed tool; None: it would refuse the tool, and the whole page with it."""
    name, schema = tool.get("name"), tool.get("inputSchema")
    is_whole = isinstance(name, str) and isinstance(schema, dict) and _is_read(schema)
    return {"name": name, "inputSchema": schema} if is_whole else None


def _is_read(schema: Mapping[str, object]) -> bool:
    """Whether the protocol's library can read the schema of a tool's arguments. What else is wrong with it, it does not see."""
    properties, required = schema.get("properties"), schema.get("required")
    return (
        schema.get("type") == "object"
        and isinstance(schema.get("$schema"), str | None)
        and (
            properties is None
            or (isinstance(properties, dict) and all(isinstance(each, dict | bool) for each in properties.values()))
        )
        and (required is None or (isinstance(required, list) and all(isinstance(each, str) for each in required)))
    )


def library_of_protocol() -> "_Library":
    """The names of the vendor's library that this module uses. Imported when a server is opened, because it takes a second.

    Raises:
        ConfigError: the extra `mcp` is not installed
    """
    try:
        import mcp
        import mcp_types
        from mcp.client.stdio import get_default_environment
        from mcp.client.streamable_http import streamable_http_client
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
        from mcp.shared.message import SessionMessage
    except ImportError as error:
        raise ConfigError(CONFIGURATION, "mcp", "", f"{needs('mcp')} ({error})") from error
    # Its messages quote what servers send, with tracebacks. This module's errors say what matters of them.
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    return _Library(
        client=mcp.Client,
        implementation=mcp_types.Implementation,
        elicit_result=mcp_types.ElicitResult,
        list_changed=mcp_types.ToolListChangedNotification,
        call_params=mcp_types.CallToolRequestParams,
        call_request=mcp_types.CallToolRequest,
        inherited=get_default_environment,
        read=lambda line: SessionMessage(mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)),
        streamable_http_client=streamable_http_client,
        error=mcp.MCPError,
        closed=mcp_types.CONNECTION_CLOSED,
        unreadable=mcp_types.PARSE_ERROR,
        listen_unsupported=ListenNotSupportedError,
        subscription_lost=SubscriptionLost,
        answer=TypeAdapter(mcp_types.CallToolResult | mcp_types.InputRequiredResult),
    )


@dataclass(frozen=True, slots=True)
class _Library:
    client: "type[mcp.Client]"
    implementation: "type[mcp_types.Implementation]"
    elicit_result: "type[mcp_types.ElicitResult]"
    list_changed: "type[mcp_types.ToolListChangedNotification]"
    call_params: "type[mcp_types.CallToolRequestParams]"
    call_request: "type[mcp_types.CallToolRequest]"
    inherited: Callable[[], dict[str, str]]
    """The environment variables that a command may have."""
    read: "Callable[[bytes], SessionMessage]"
    """Reads a message from a line of JSON."""
    streamable_http_client: "Callable[..., Transport]"
    error: "type[mcp.MCPError]"
    closed: int
    unreadable: int
    listen_unsupported: "type[ListenNotSupportedError]"
    subscription_lost: "type[SubscriptionLost]"
    answer: "TypeAdapter[mcp_types.CallToolResult | mcp_types.InputRequiredResult]"

    def meaning(self, error: "mcp.MCPError") -> Exception:
        """This package's error for one of the protocol."""
        return meaning_of(error.error.code, error.error.message, error.error.data, closed=self.closed)
