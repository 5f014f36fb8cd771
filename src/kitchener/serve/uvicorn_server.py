"""Runs the server on a socket until a signal drains it. On asyncio, because uvicorn runs nowhere else."""

import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Final

import anyio
import uvicorn
from starlette.types import ASGIApp

from kitchener.config import RuntimeConfig
from kitchener.logs import get_logger
from kitchener.serve.application import KitchenerServer
from kitchener.serve.connections import connection_class, connections_within, few_at_once
from kitchener.serve.log_limit import limited

_log = get_logger(__name__)

SPARE_CONNECTIONS: Final = 256
"""Connections beyond `serve.max_requests`, for requests for health and for refusals. Further ones get 503 unread."""
_IDLE_S: Final = 75
_LOGGERS: Final = ("uvicorn.error", "asyncio")
"""Loggers of other libraries, to which clients can cause lines: asyncio logs that it cannot accept a connection."""
_LINES_PER_MINUTE: Final = 10
"""Errors, and warnings of the server, of one kind a minute that are logged: enough to see what happens."""
_LAST_REQUESTS_S: Final = 0.5
"""How long connected clients may still send a request, seconds: a client that is just sending cannot know of the shutdown."""

OnSignal = Callable[[Callable[[signal.Signals], bool | None]], AbstractAsyncContextManager[None]]
"""Calls its argument at a signal that ends a program; a second one ends the process."""


class _QuietServer(uvicorn.Server):
    """Leaves signals to the command."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _uvicorn_settings(app: ASGIApp, config: RuntimeConfig) -> uvicorn.Config:
    """The settings of uvicorn: HTTP only, without its own logs and headers, within the limits of the server."""
    most = connections_within(config.serve.max_requests + SPARE_CONNECTIONS)
    return uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        http=connection_class(most, config.serve.request_timeout_s, asks_back=config.serve.client_gone == "cancel"),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=most,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=max(1, round(config.limits.abort_grace_s)),
    )


async def _leave_to_the_next(running: uvicorn.Server) -> None:
    """Accepts no more connections, and closes each open one after its answer, or at once if it is idle."""
    for each in running.servers:
        each.close()
    # Every second, uvicorn rebuilds the headers that it adds to answers, from its settings.
    for headers in (running.config.encoded_headers, running.server_state.default_headers):
        headers.append((b"connection", b"close"))
    await anyio.sleep(_LAST_REQUESTS_S)
    for connection in list(running.server_state.connections):
        connection.shutdown()


async def listen(
    server: KitchenerServer,
    listener: socket.socket,
    *,
    config: RuntimeConfig,
    on_signal: OnSignal,
    ready: Callable[[], object],
    stopping: Callable[[], object] = lambda: None,
    is_shared: bool = False,
) -> bool:
    """Serves until a signal, or until the ledgers take no more entries, then drains.

    Args:
        server: what answers
        listener: a socket that listens; closed at the end
        config: the settings of the server, and its limits
        on_signal: installs the handler of signals
        ready: called once requests are taken
        stopping: called when it begins to drain
        is_shared: whether somebody else keeps the listener open for the next server. Then no connection is taken while this one
            drains: new ones wait for the next server. Otherwise new requests are refused, so that `/readyz` can tell

    Returns:
        whether all turns were ready within the grace time
    """
    running, told, drained = _QuietServer(_uvicorn_settings(server.app, config)), anyio.Event(), [True]

    async def end() -> None:
        await told.wait()
        _log.info("draining")
        stopping()
        if is_shared:
            await _leave_to_the_next(running)
        drained[0] = await server.drain()
        running.should_exit = True

    async def end_unwritable() -> None:
        await server.unwritable.wait()
        told.set()

    async with on_signal(lambda _: told.set()), anyio.create_task_group() as tasks:
        tasks.start_soon(end)
        tasks.start_soon(end_unwritable)
        ready()
        async with limited([logging.getLogger(each) for each in _LOGGERS], _LINES_PER_MINUTE):
            await running.serve(sockets=[few_at_once(listener)])
        tasks.cancel_scope.cancel()
    return drained[0]
