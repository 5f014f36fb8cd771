"""The guard in `conftest.py` is worth as much as its own test."""

import socket
from pathlib import Path

import anyio
import pytest

from kitchener.config import ProviderConfig, RouterConfig
from kitchener.errors import ProviderError
from kitchener.gateway import build_providers
from kitchener.testing import prompt_request

# An address of the block that is reserved for documentation: nothing answers there, guard or no guard.
ELSEWHERE = ("192.0.2.1", 9)


def test_a_socket_does_not_connect_beyond_this_machine() -> None:
    with socket.socket() as sock, pytest.raises(pytest.fail.Exception, match=r"192\.0\.2\.1"):
        sock.connect(ELSEWHERE)
    with socket.socket() as sock, pytest.raises(pytest.fail.Exception, match=r"192\.0\.2\.1"):
        sock.connect_ex(ELSEWHERE)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_model_is_not_called_beyond_this_machine(scheme: str) -> None:
    it = ProviderConfig(base_url=f"{scheme}://{ELSEWHERE[0]}:{ELSEWHERE[1]}/v1", model="m")
    async with build_providers(RouterConfig(providers={"it": it})) as providers:
        with pytest.raises(ProviderError, match="cannot connect to the proxy"), anyio.fail_after(20):
            await providers["it"].complete(prompt_request("hello"))


def test_a_name_is_not_resolved() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"service\.invalid"):
        socket.getaddrinfo("service.invalid", 443)


async def test_an_async_connection_beyond_this_machine_fails_the_test() -> None:
    with pytest.raises((pytest.fail.Exception, BaseExceptionGroup)):
        await anyio.connect_tcp(*ELSEWHERE)


async def test_loopback_stays_open() -> None:
    async with await anyio.create_tcp_listener(local_host="localhost") as listener, anyio.create_task_group() as tasks:

        async def greet(stream: anyio.abc.SocketStream) -> None:
            async with stream:
                await stream.send(b"hello")

        tasks.start_soon(listener.serve, greet)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        with anyio.fail_after(5):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                assert await stream.receive() == b"hello"
        tasks.cancel_scope.cancel()


def test_unix_sockets_stay_open(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(path)
        server.listen()
        client.connect(path)
