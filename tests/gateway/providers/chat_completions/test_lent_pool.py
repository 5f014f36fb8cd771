"""Connections that another thread has: an asker that leaves takes its answer with it."""

import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import cast

import anyio
import anyio.to_thread
import pytest
from anyio.abc import Listener, SocketAttribute, SocketStream
from anyio.from_thread import start_blocking_portal

from kitchener.errors import ProviderError
from kitchener.gateway.providers.chat_completions.http_pool import OwnAnswer, OwnConnections
from kitchener.gateway.providers.chat_completions.lent_pool import Lender, LentConnections
from tests.gateway.shared.chat_endpoints import opened
from tests.gateway.shared.gateway_kit import ask


class Answer:
    """An answer that notes whether it was closed."""

    status, headers = 200, dict[str, str]()

    def __init__(self) -> None:
        self.is_closed = threading.Event()

    async def read(self) -> bytes:
        return b"all of it"

    def is_over(self) -> bool:
        return True

    def close(self) -> None:
        self.is_closed.set()


class Late:
    """Connections whose answer comes although the asker has left."""

    def __init__(self) -> None:
        self.answer, self.begun, self.may_end = Answer(), threading.Event(), threading.Event()

    async def post(self, content: bytes, read_timeout_s: float | None, lines: bytes = b"") -> OwnAnswer:
        self.begun.set()
        with suppress(anyio.get_cancelled_exc_class()):
            await anyio.to_thread.run_sync(self.may_end.wait)
        return cast(OwnAnswer, self.answer)


@pytest.fixture
async def late() -> AsyncIterator[tuple[Late, LentConnections]]:
    own = Late()
    with start_blocking_portal("asyncio") as portal:
        yield own, LentConnections(portal.call(Lender), cast(OwnConnections, own))


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_an_answer_is_one_way_there_and_back(late: tuple[Late, LentConnections]) -> None:
    own, connections = late
    own.may_end.set()
    answer = await connections.post(b"{}", None)
    assert (await answer.read(), await answer.read(), answer.is_over()) == (b"all of it", b"", True)
    assert not own.answer.is_closed.is_set()


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_an_answer_that_comes_after_its_asker_left_is_closed(late: tuple[Late, LentConnections]) -> None:
    own, connections = late
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connections.post, b"{}", None)
        assert await anyio.to_thread.run_sync(own.begun.wait, 10)
        tasks.cancel_scope.cancel()
    own.may_end.set()
    assert await anyio.to_thread.run_sync(own.answer.is_closed.wait, 10)


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_a_call_that_still_connects_when_the_other_thread_ends_fails_as_a_call_that_was_cut() -> None:
    """As when the block of the providers ends while another task waits for an endpoint. The other thread ends with all that
    runs there, and the asker must not be cancelled in its place.
    """
    begun, found = anyio.Event(), list[ProviderError]()

    async def shake_no_hands(stream: SocketStream) -> None:
        async with stream:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while await stream.receive():
                    begun.set()

    async def call() -> None:
        with pytest.raises(ProviderError) as caught:
            await provider.complete(ask())
        found.append(caught.value)

    with anyio.fail_after(30):
        async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, shake_no_hands)
            async with anyio.create_task_group() as callers, opened(f"https://127.0.0.1:{port_of(listener)}/v1") as provider:
                callers.start_soon(call)
                await begun.wait()
            tasks.cancel_scope.cancel()
    assert [each.reason for each in found] == ["connection"]


def port_of(listener: Listener[SocketStream]) -> int:
    return listener.extra(SocketAttribute.local_port)
