"""Assembles the server over an open runtime: its routes, its guard, its turns, and how it stops.

Explained in `docs/server.md`.
"""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
import anyio.lowlevel
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from kitchener.clock import Clock, SystemClock
from kitchener.config import ServeConfig
from kitchener.errors import ConfigError, LedgerWriteError
from kitchener.errors.root import CONFIGURATION
from kitchener.logs import get_logger
from kitchener.runtime import Runtime
from kitchener.serve.access.callers import Callers
from kitchener.serve.access.guard import Draining, Guard
from kitchener.serve.access.request_subject import RequestSubjects
from kitchener.serve.agui.agui_endpoint import AguiEndpoint
from kitchener.serve.answer_models.chat_answers import ChatAnswer, ListedModelAnswer, ModelListAnswer
from kitchener.serve.chat_completions.chat_request import ChatBody
from kitchener.serve.chat_completions.completions import CompletionEndpoints
from kitchener.serve.chat_completions.session_finder import SessionFinder
from kitchener.serve.metrics.approval_backlog import ApprovalBacklog
from kitchener.serve.metrics.exposition import CONTENT_TYPE, exposition, process_families, runtime_families, server_families
from kitchener.serve.metrics.server_counts import ServerCounts
from kitchener.serve.native.native_api import session_operations, subject_operations
from kitchener.serve.native.session_access import SessionAccess
from kitchener.serve.operations_table import Parameter, Served, described_by
from kitchener.serve.responses.input_items import InputItems
from kitchener.serve.responses.responses_api import response_operations
from kitchener.serve.responses.responses_endpoints import ResponseEndpoints
from kitchener.serve.served_turns import ServedTurns
from kitchener.serve.web_chat.page_files import page_routes
from kitchener.telemetry.port import Telemetry

_log = get_logger(__name__)


def _traced_by(telemetry: Telemetry | None, app: ASGIApp) -> ASGIApp:
    """The application in which requests are parts of their callers' traces; without telemetry, the application itself."""
    if telemetry is None:
        return app

    async def traced(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        with telemetry.caller(Headers(scope=scope)):
            await app(scope, receive, send)

    return traced


class KitchenerServer:
    """A server that is ready for requests. Made by `open_server`.

    Args:
        runtime: runs the agents
        callers: whose keys count
        turns: runs the turns of requests
        clock: the time of day
    """

    def __init__(self, runtime: Runtime, callers: Callers, turns: ServedTurns, clock: Clock) -> None:
        config = runtime.config.serve
        self._turns, self._limits, self._runtime = turns, runtime.config.limits, runtime
        self._approvals = ApprovalBacklog(runtime, clock)
        self._open, self._draining = anyio.CancelScope(), Draining()
        self.write_failure: LedgerWriteError | None = None
        """Why the ledgers take no more entries; None: they do."""
        self.unwritable: Final = anyio.Event()
        """Set when the ledgers take no more entries: the server then refuses all requests, and its owner must end it."""
        sessions, access = SessionFinder(runtime, turns, clock), SessionAccess(runtime)
        responses = ResponseEndpoints(access, config, turns, clock, sessions)
        chat = CompletionEndpoints(runtime, config, turns, clock, sessions)
        model = Parameter("model", "path", "an agent class, or one with `-utility`")
        self.operations: Final = [
            Served("GET", "/v1/models", "List the agents", chat.models, "chat", gives=ModelListAnswer),
            Served("GET", "/v1/models/{model}", "Show an agent", chat.model, "chat", None, (model,), gives=ListedModelAnswer),
            Served(
                "POST",
                "/v1/chat/completions",
                "Reply to a conversation",
                chat.complete,
                "chat",
                ChatBody,
                errors=(409, 410, 502, 504),
                streams=True,
                gives=ChatAnswer,
            ),
            *response_operations(responses, InputItems(access)),
            *AguiEndpoint(access, config, turns, clock, sessions).operations(),
            *subject_operations(access, responses.forget_ended, sessions.histories.forget),
            *session_operations(access, config, turns, self._draining),
        ]
        """Everything that `/openapi.json` describes."""
        page = page_routes() if config.page else []
        routes = [
            Route("/healthz", _healthy),
            Route("/readyz", self._ready),
            *(each.route() for each in self.operations),
            *page,
            Served("GET", "/metrics", "Counts for Prometheus", self._metrics, "operate").route(),
            Served("GET", "/openapi.json", "This description", described_by(self.operations)).route(),
        ]
        public = [each.path for each in page]
        subjects, router = RequestSubjects(config, clock), Router(routes, redirect_slashes=False)
        self._guard = Guard(router, callers, subjects, config, turns.counts, self._draining, public)
        self.app: ASGIApp = _traced_by(runtime.telemetry, self._guard)
        """The ASGI application."""

    async def look_after(self) -> None:
        """Paces and checks the open streams until `close`."""
        with self._open:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._turns.run)
                tasks.start_soon(self._refuse_what_cannot_be_recorded)
                await self._guard.streams.run()

    async def _refuse_what_cannot_be_recorded(self) -> None:
        failure = self.write_failure = await self._runtime.wait_for_write_failure()
        _log.error("ledgers take no more entries, and requests are refused", path=failure.path, problem=failure.problem)
        self._draining.begin()
        self.unwritable.set()

    def close(self) -> None:
        """Cancels the turns and streams that still run."""
        self._turns.stop_all()
        self._open.cancel()

    async def drain(self) -> bool:
        """Refuses new requests, and returns when the running ones are answered and their turns are recorded.

        Turns that take longer than `limits.shutdown_grace_s` are cancelled on record, and their clients are told. If nothing
        can be recorded any more, they are cancelled at once.

        Returns:
            whether all turns were ready in time
        """
        self._draining.begin()
        can_record = self.write_failure is None
        with anyio.move_on_after(self._limits.shutdown_grace_s if can_record else 0) as waiting:
            await self._wait_idle()
        if waiting.cancelled_caught:
            if can_record:
                _log.warning("turns recorded as aborted after the grace time", turns=len(self._turns))
            self._turns.stop_all(can_record=can_record)
            with anyio.move_on_after(self._limits.abort_grace_s):
                await self._wait_idle()
        return not waiting.cancelled_caught

    async def _metrics(self, _: Request) -> Response:
        began = anyio.current_time()
        await anyio.lowlevel.checkpoint()
        lag_s, found = anyio.current_time() - began, self._runtime.statistics()
        waiting = await self._approvals.count(found["commits"])
        families = [
            *server_families(self._turns.counts, running_requests=self._guard.running, loop_lag_s=lag_s),
            *runtime_families(found, waiting_approvals=waiting, prices=self._runtime.config.router.prices),
            *await anyio.to_thread.run_sync(lambda: list(process_families())),
        ]
        return Response(exposition(families), media_type=CONTENT_TYPE)

    async def _wait_idle(self) -> None:
        await self._turns.wait_idle()
        await self._guard.wait_idle()

    async def _ready(self, request: Request) -> Response:
        """Whether new requests are admitted."""
        if self.write_failure is not None:
            return PlainTextResponse("ledgers take no more entries\n", 503)
        return PlainTextResponse("draining\n", 503) if self._draining.has_begun else PlainTextResponse("ready\n")


@asynccontextmanager
async def open_server(runtime: Runtime, *, clock: Clock | None = None) -> AsyncIterator[KitchenerServer]:
    """Opens a server over a runtime; at the end of the block no turn of it runs.

    Args:
        runtime: an open runtime; its `[serve]` has the settings
        clock: the time of day; None: the system clock

    Raises:
        ConfigError: a key cannot be used, or the address needs one
    """
    config = runtime.config
    callers = await anyio.to_thread.run_sync(Callers.load, config)
    body_error: Exception | None = None
    async with anyio.create_task_group() as tasks:
        serve = config.serve
        counts, cancels = ServerCounts(config.class_names), serve.client_gone == "cancel"
        turns = ServedTurns(tasks, config.limits.stream_buffer, serve.text_interval_s, cancels=cancels, counts=counts)
        server = KitchenerServer(runtime, callers, turns, clock or SystemClock())
        tasks.start_soon(server.look_after)
        try:
            yield server
        except Exception as error:  # noqa: BLE001  raised again below, outside the task group, which would wrap it
            body_error = error
        finally:
            server.close()
    if body_error is not None:
        raise body_error


def open_listener(config: ServeConfig) -> socket.socket:
    """A socket that listens where the settings say; the caller closes it.

    Raises:
        ConfigError: the address does not belong to this machine, or is in use
    """
    try:
        family = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family[0], socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(CONFIGURATION, "serve.host", repr(config.host), f"cannot be used: {error.strerror}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(family[4])
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        where = f"{config.host}:{config.port}"
        raise ConfigError(
            CONFIGURATION, "serve.port", where, f"cannot listen there: {error.strerror}; choose another port"
        ) from None
    return listener


_BACKLOG = 2_048


async def _healthy(_: Request) -> Response:
    return PlainTextResponse("ok\n")
