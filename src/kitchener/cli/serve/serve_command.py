"""`kitchener serve`: the agents of a root over HTTP, until a signal drains the server."""

import os
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Annotated

import anyio
import anyio.to_thread
from cyclopts import Parameter

from kitchener.cli.exits import OK
from kitchener.cli.options import NO_OPTIONS, Options, listens, whole_number
from kitchener.cli.terminal.log_lines import LogFormat, LogLevel, logged_from, show_logs_as
from kitchener.cli.terminal.output import discard_output, print_text
from kitchener.cli.terminal.stop_signals import on_signal
from kitchener.config import RuntimeConfig
from kitchener.errors import ConfigError
from kitchener.errors.root import CONFIGURATION
from kitchener.extras import can_serve, needs
from kitchener.logs import get_logger
from kitchener.runtime import LoadedConfig, open_runtime, tune_gc
from kitchener.runtime.root_wait import wait_until_released

_log = get_logger(__name__)


def serve(
    *,
    options: Options = NO_OPTIONS,
    host: Annotated[str | None, Parameter(help="Address to listen on. Overrides `[serve] host`.")] = None,
    port: Annotated[
        int | None, whole_number("Port to listen on; 0: a free one. Overrides `[serve] port`.", at_least=0, at_most=65_535)
    ] = None,
    log_level: LogLevel = None,
    log_format: LogFormat = "text",
) -> int:
    """Serve the agents over HTTP, for chat clients and programs.

    It serves the OpenAI API, AG-UI, its own API, and a web page at `/`. Without `[serve.clients]` it listens on this machine
    only, and accepts any key. SIGTERM or Ctrl-C lets running turns finish within `limits.shutdown_grace_s`, aborts the others
    on record, and exits with 0; a second one ends it at once. Exits with 7 if another process has the root open.

    For example:

        kitchener serve
        kitchener serve --port 9000 --root ./ledgers
    """
    show_logs_as(log_format)
    if not can_serve():
        raise ConfigError("kitchener serve", "", "", needs("serve"))
    if options.named_agent is not None:
        told = "cannot be chosen here: all agent classes are served, and a client names one as its model"
        raise ConfigError("--agent", "", repr(options.named_agent), told)
    loaded = options.load_checked()
    config = loaded.config
    given = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    if given:
        config = config.model_copy(update={"serve": config.serve.model_copy(update=given)})
    with logged_from(log_level), _named_setting(given, loaded.source):
        return anyio.run(_serve, replace(loaded, config=config))


@contextmanager
def _named_setting(given: Collection[str], source: str) -> Iterator[None]:
    """Makes an error about a setting name the option that has overridden it, or else the file.

    Args:
        given: the settings of `[serve]` that options have overridden
        source: the source of the other settings
    """
    try:
        yield
    except ConfigError as error:
        if error.source != CONFIGURATION:
            raise
        name = error.key.removeprefix("serve.")
        where = (f"--{name}", "") if name in given else (source, error.key)
        raise ConfigError(*where, error.value, error.expected) from error.__cause__


async def _serve(loaded: LoadedConfig) -> int:
    # Imported here, because the extra `serve` may be missing.
    from kitchener.cli.serve.systemd import notify, take_listener
    from kitchener.serve.application import open_listener, open_server
    from kitchener.serve.uvicorn_server import listen

    config = loaded.config
    with take_listener(config.serve, os.environ) or nullcontext() as handed_over:
        await wait_for_root(config)
        async with open_runtime(loaded, admin_socket=listens(config)) as runtime, open_server(runtime) as server:
            tune_gc()
            found = await anyio.to_thread.run_sync(open_listener, config.serve) if handed_over is None else handed_over
            with found as listener:

                def tell_ready() -> None:
                    notify("READY=1", os.environ)
                    _announce(_where(listener))

                await listen(
                    server,
                    listener,
                    config=config,
                    on_signal=on_signal,
                    ready=tell_ready,
                    stopping=lambda: notify("STOPPING=1", os.environ),
                    is_shared=handed_over is not None,
                )
            if server.write_failure is not None:
                raise server.write_failure
    return OK


async def wait_for_root(config: RuntimeConfig) -> None:
    """Returns when no process writes the ledgers of the root, or after `serve.lock_wait_s`.

    If a process still has them then, opening the runtime fails with an error that names it.
    """
    await wait_until_released(config, config.serve.lock_wait_s)


def _announce(line: str) -> None:
    """Prints the line. A server whose standard output takes none, because its reader or its disk fails, serves without it."""
    try:
        print_text(line)
    except OSError as error:
        discard_output()
        _log.warning("nothing can be printed on standard output", problem=error.strerror, unprinted=line)


def _where(listener: socket.socket) -> str:
    """The line that says where the server can be reached."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"serving on http://{shown}:{port}/; OpenAI clients: base URL http://{shown}:{port}/v1"
