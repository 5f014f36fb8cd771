"""Talks to systemd: takes over a listening socket, and reports whether the server is ready.

Uses the protocols of `sd_listen_fds` and `sd_notify`. Clients that connect while no server runs wait in the system's queue
until the next server accepts them.
"""

import os
import socket
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from typing import Final, Literal

from kitchener.config import ServeConfig
from kitchener.errors import ConfigError
from kitchener.serve.access.callers import is_loopback

_SOURCE: Final = "the handed-over socket"


def take_listener(config: ServeConfig, environ: MutableMapping[str, str], *, first: int = 3) -> socket.socket | None:
    """The socket that was handed over to this process; None: there is none. The caller closes it.

    Removes the environment variables, so that child processes do not use the socket.

    Args:
        config: the server's settings; without clients in them, the socket must listen on a loopback address
        environ: the environment of this process
        first: the descriptor of the first socket; the protocol says 3

    Raises:
        ConfigError: several sockets were handed over, the socket does not listen on TCP, or its address requires keys
    """
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()):
        return None
    if count != "1":
        raise ConfigError(_SOURCE, "LISTEN_FDS", repr(count), "expected one socket; a .socket unit has one ListenStream")
    try:
        found = socket.socket(fileno=first)
    except OSError as error:
        raise ConfigError(_SOURCE, "LISTEN_FDS", repr(count), f"no socket is there: {error.strerror}") from None
    try:
        found.set_inheritable(False)
        _check(found, config)
    except BaseException:
        found.close()
        raise
    return found


def _check(found: socket.socket, config: ServeConfig) -> None:
    is_tcp = found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM
    if not is_tcp or not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise ConfigError(_SOURCE, "ListenStream", "", "is no listening TCP socket; give it an address and a port")
    host = found.getsockname()[0]
    if not config.clients and not is_loopback(host):
        raise ConfigError(
            _SOURCE, "ListenStream", repr(host), "needs [serve.clients.<name>]: without keys it must be 127.0.0.1"
        )


def notify(state: Literal["READY=1", "STOPPING=1"], environ: Mapping[str, str]) -> None:
    """Tells the service manager the state of this process, if one listens. Never fails."""
    place = environ.get("NOTIFY_SOCKET", "")
    if place[:1] not in ("/", "@"):
        return
    address = f"\0{place[1:]}" if place.startswith("@") else place
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(state.encode(), address)
