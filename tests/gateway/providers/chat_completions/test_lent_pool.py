"""Connections that another thread has: an asker that leaves takes its answer with it."""

import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import cast

import anyio
import anyio.to_thread
import pytest
from anyio.from_thread import start_blocking_portal

from kitchener.gateway.providers.chat_completions.http_pool import OwnAnswer, OwnConnections
from kitchener.gateway.providers.chat_completions.lent_pool import Lender, LentConnections


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
