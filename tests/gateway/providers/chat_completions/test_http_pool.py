"""What goes over a connection to an endpoint, and when the connection is used again (docs/gateway.md)."""

from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from kitchener.config import ProviderConfig, RouterConfig
from kitchener.errors import ProviderError
from kitchener.gateway import build_providers
from kitchener.records.prompt import Message, Provider
from tests.gateway.shared.fake_server import completion, error, fake_server
from tests.gateway.shared.gateway_kit import ask

BODY = completion("Hello!").body
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)
HINTS = b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.delenv("REQUEST_METHOD", raising=False)
    monkeypatch.setenv("SOME_KEY", "sk-some-key")


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Provider]:
    it = ProviderConfig(base_url=url, model="m", timeout_s=20.0, api_key="env:SOME_KEY")
    async with build_providers(RouterConfig(providers={"it": it})) as providers:
        yield providers["it"]


@asynccontextmanager
async def served(handle: Callable[[SocketStream], Awaitable[None]]) -> AsyncIterator[str]:
    """A server that leaves each connection to a function, and its address."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        yield f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/v1"
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("interim", [HINTS, CONTINUE, HINTS + CONTINUE + HINTS])
async def test_interim_answers_are_passed_over(interim: bytes) -> None:
    async def handle(stream: SocketStream) -> None:
        async with stream:
            for _ in range(2):
                await stream.receive()
                await stream.send(interim)
                await stream.send(ANSWER)
            await anyio.sleep_forever()

    async with served(handle) as url, opened(url) as provider:
        for _ in range(2):
            with anyio.fail_after(20):
                assert (await provider.complete(ask())).text == "Hello!"


async def test_interim_answers_without_end_are_not_read_to_the_deadline() -> None:
    """Regression: they kept the processor busy, and with it everybody waiting, until the time-out of the call."""
    is_closed = anyio.Event()

    async def handle(stream: SocketStream) -> None:
        async with stream:
            await stream.receive()
            try:
                while True:
                    await stream.send(HINTS * 500)
            except anyio.BrokenResourceError:
                is_closed.set()

    async with served(handle) as url, opened(url) as provider:
        with pytest.raises(ProviderError) as caught, anyio.fail_after(15):
            await provider.complete(ask())
        with anyio.fail_after(15):
            await is_closed.wait()
    assert caught.value.reason == "connection"
    assert caught.value.detail == "more than 16 interim answers before the answer"


async def test_a_connection_whose_request_was_not_read_is_not_used_again() -> None:
    connections = 0

    async def handle(stream: SocketStream) -> None:
        nonlocal connections
        connections += 1
        async with stream:
            await stream.receive(1_000)
            await stream.send(ANSWER)
            await anyio.sleep_forever()

    long = (Message("user", "word " * 4_000_000),)  # more than the kernel takes while nobody reads
    async with served(handle) as url, opened(url) as provider:
        for _ in range(3):
            with anyio.fail_after(20):
                assert (await provider.complete(ask(messages=long))).text == "Hello!"
    assert connections == 3


@pytest.mark.parametrize("is_read_before", [False, True])
async def test_a_second_answer_to_a_call_is_not_the_answer_to_the_next_one(*, is_read_before: bool) -> None:
    """The next call may be another subject's. Regression: it got the answer that nobody had asked for."""
    other, connections = ANSWER.replace(b"Hello!", b"Other!"), 0
    is_answered, is_sent = anyio.Event(), anyio.Event()

    async def handle(stream: SocketStream) -> None:
        nonlocal connections
        connections += 1
        async with stream:
            await stream.receive()
            await stream.send(ANSWER)
            await is_answered.wait()
            if connections == 1:
                await stream.send(other)
                is_sent.set()
            await anyio.sleep_forever()

    async with served(handle) as url, opened(url) as provider:
        with anyio.fail_after(20):
            assert (await provider.complete(ask())).text == "Hello!"
            is_answered.set()
            await is_sent.wait()
            if is_read_before:
                await anyio.wait_all_tasks_blocked()
            assert (await provider.complete(ask())).text == "Hello!"
    assert connections == 2


async def test_an_answer_that_is_no_http_is_a_connection_failure_that_names_no_key() -> None:
    async def handle(stream: SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"SSH-2.0-OpenSSH_9.9 sk-some-key\r\n\r\n")

    async with served(handle) as url, opened(url) as provider:
        with pytest.raises(ProviderError) as caught, anyio.fail_after(20):
            await provider.complete(ask())
    assert caught.value.reason == "connection"
    assert "sk-some-key" not in f"{caught.value!r}{caught.value}{caught.value.__cause__!r}"


async def test_calls_through_a_proxy_share_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fake_server() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1").replace("//", "//me:secret-word@"))
        async with opened("http://model.example/v1") as provider:
            for _ in range(3):
                await provider.complete(ask())
            await anyio.wait_all_tasks_blocked()
            assert (len(proxy.hits), proxy.ended.is_set()) == (3, False)
    assert {hit.headers["host"] for hit in proxy.hits} == {"model.example"}


async def test_a_proxy_that_only_passes_bytes_on_gets_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fake_server(error(502, "no")) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.removesuffix("/v1").replace("//", "//me:secret-word@"))
        async with opened("https://model.example/v1") as provider:
            with pytest.raises(ProviderError):
                await provider.complete(ask())
    (asked,) = proxy.hits
    assert (asked.path, asked.headers["host"]) == ("model.example:443", "model.example")
    assert "sk-some-key" not in f"{asked.headers}"


async def test_a_name_and_a_password_in_the_address_are_sent_as_a_header_where_there_is_no_key() -> None:
    async with fake_server() as server:
        address = server.url.replace("//", "//me:pass%2Dword@")
        async with build_providers(RouterConfig(providers={"it": ProviderConfig(base_url=address, model="m")})) as providers:
            await providers["it"].complete(ask())
    (asked,) = server.hits
    assert asked.headers["authorization"] == f"Basic {b64encode(b'me:pass-word').decode()}"
    assert (asked.path, "me" in asked.headers["host"]) == ("/v1/chat/completions", False)
