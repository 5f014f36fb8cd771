"""Only a socket that can be served is taken from the service manager (docs/operations.md)."""

import os
import socket

import pytest

from kitchener.cli.serve.systemd import take_listener
from kitchener.config import ServeClientConfig, ServeConfig
from kitchener.errors import ConfigError

LOCAL = ServeConfig()
WITH_KEYS = ServeConfig(clients={"ada": ServeClientConfig(key="env:ADA_KEY", subject="ada")})


def taken(given: socket.socket, config: ServeConfig, **environ: str) -> tuple[socket.socket | None, dict[str, str]]:
    """What is taken, and what is left of the environment."""
    left = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "web", "HOME": "/", **environ}
    return take_listener(config, left, first=os.dup(given.fileno())), left


@pytest.mark.parametrize(("host", "config"), [("127.0.0.1", LOCAL), ("0.0.0.0", WITH_KEYS)])
def test_a_listening_socket_is_taken_and_kept_from_child_processes(host: str, config: ServeConfig) -> None:
    with socket.create_server((host, 0)) as given:
        found, left = taken(given, config)
        assert found is not None
        with found:
            assert (found.getsockname(), found.get_inheritable(), left) == (given.getsockname(), False, {"HOME": "/"})


@pytest.mark.parametrize("pid", ["1", ""])
def test_one_of_another_process_is_not_taken(pid: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as given:
        descriptor = os.dup(given.fileno())
        left = {"LISTEN_PID": pid, "LISTEN_FDS": "1"}
        assert (take_listener(LOCAL, left, first=descriptor), left) == (None, {})
        os.close(descriptor)


@pytest.mark.parametrize(
    ("count", "told"), [("2", "one ListenStream"), ("0", "one ListenStream"), ("many", "one ListenStream")]
)
def test_another_number_of_sockets_is_refused(count: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        take_listener(LOCAL, {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": count})


def test_one_that_others_reach_needs_keys() -> None:
    with socket.create_server(("0.0.0.0", 0)) as given, pytest.raises(ConfigError, match=r"serve\.clients"):
        taken(given, LOCAL)


def test_what_is_no_listening_tcp_socket_is_refused() -> None:
    for family, kind in (
        (socket.AF_INET, socket.SOCK_STREAM),
        (socket.AF_INET, socket.SOCK_DGRAM),
        (socket.AF_UNIX, socket.SOCK_STREAM),
    ):
        with socket.socket(family, kind) as given, pytest.raises(ConfigError, match="no listening TCP socket"):
            taken(given, LOCAL)
    reading, writing = os.pipe()
    with pytest.raises(ConfigError, match="no socket is there"):
        take_listener(LOCAL, {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}, first=reading)
    os.close(reading)
    os.close(writing)
