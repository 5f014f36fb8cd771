"""A server accepts as many connections as the system's limit of open files allows, and ends one whose client takes nothing
(docs/server.md).
"""

import asyncio
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from kitchener.serve.connections import JoinedWrites, connection_class, connections_within
from tests.clients.test_openai_client import listening
from tests.hostile.connections.test_log_limit import records_of
from tests.shared.logs import captured_logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


class Reader(asyncio.Transport):
    """A connection whose client takes what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.untaken, self.is_ended = 0, False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.untaken += len(data)

    def get_write_buffer_size(self) -> int:
        return self.untaken

    def is_closing(self) -> bool:
        return self.is_ended

    def abort(self) -> None:
        self.is_ended = True


async def nobody(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that is never asked."""


class Arrived(Reader):
    """A connection that was accepted, and whose request, if there is one, was not read yet."""

    def __init__(self, ours: socket.socket) -> None:
        super().__init__()
        self._ours = ours

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._ours if name == "socket" else default

    def close(self) -> None:
        self.is_ended = True


class Timers:
    """The event loop of a connection, whose time passes when the test says so."""

    def __init__(self) -> None:
        self._calls = list[Callable[[], object]]()

    def call_soon(self, call: Callable[[], object]) -> None:
        self._calls.append(call)

    def call_later(self, _: float, call: Callable[[int], object], argument: int) -> None:
        self._calls.append(partial(call, argument))

    def pass_time(self) -> None:
        due, self._calls = self._calls, []
        for call in due:
            call()


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_client_that_takes_an_answer_piece_by_piece_keeps_its_connection_until_it_stops(is_slow: bool) -> None:
    """It has a while for each 16 KiB, and not for the whole answer."""
    reader, timers = Reader(), Timers()
    writes = JoinedWrites(reader, cast(asyncio.AbstractEventLoop, timers), 10.0)
    writes.write(b"x" * 100_000)
    for _ in range(5):
        reader.untaken -= 16_384
        timers.pass_time()
        assert not reader.is_ended
    reader.untaken -= 16_000 if is_slow else reader.untaken
    timers.pass_time()
    timers.pass_time()
    assert reader.is_ended is is_slow


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # as the server
async def test_a_crowd_of_requests_that_were_not_read_hides_no_idle_connection_for_long() -> None:
    """Few connections are looked at for each new one, and those that ask for something not again and again."""
    handles = cast(Any, connection_class(20, 10.0, asks_back=False))
    config, state = uvicorn.Config(nobody, log_config=None, ws="none"), ServerState()
    config.load()
    with ExitStack() as sockets:

        def arrive(*, asks: bool) -> Arrived:
            theirs, ours = map(sockets.enter_context, socket.socketpair())
            if asks:
                theirs.send(b"GET / HTTP/1.1\r\n")
            connection, handling = Arrived(ours), handles(config=config, server_state=state, app_state={})
            handling.connection_made(connection)
            sockets.callback(handling.stop_waiting)
            return connection

        asking, idle = [arrive(asks=True) for _ in range(17)], [arrive(asks=False) for _ in range(2)]
        for _ in range(3):
            arrive(asks=True)
        assert [each.is_ended for each in idle] == [True, True]
        assert sum(each.is_ended for each in asking) == 1


def test_the_limit_of_open_files_rises_with_the_connections_and_never_falls() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (600, hard))
    assert connections_within(300) == 300
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 812
    assert connections_within(10) == 10
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 812


def test_where_the_system_allows_few_files_the_ledgers_keep_theirs() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = 1_048_576
        resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, hard))
    with captured_logs() as events:
        assert connections_within(hard) == hard - 512
    (warned,) = events
    assert (warned["log_level"], warned["open_files"], warned["needed"]) == ("warning", hard, hard + 512)


_BURST = """
import resource, socket, sys
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
[socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
"""


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # uvicorn runs nowhere else
async def test_a_burst_of_connections_takes_no_file_of_the_ledgers(tmp_path: Path) -> None:
    """Regression: all were accepted before one was closed, so no file was left, and each failure to accept was logged."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    queue = Path("/proc/sys/net/core/somaxconn")
    if not queue.exists() or int(queue.read_text()) < 1_500:
        pytest.skip("the system's queue is shorter than such a burst")
    if hard != resource.RLIM_INFINITY and hard < 2_000:
        pytest.skip("no process may open as many files as such a burst has connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_000, hard))
    with records_of("asyncio") as found:
        async with listening(tmp_path, serve={"max_requests": 1}) as real:
            assert len((await real.openai.models.list()).data) == 2
            # The event loop waits meanwhile, so that it finds all connections at once.
            command = [sys.executable, "-c", _BURST, str(real.openai.base_url.port), "1500"]
            subprocess.run(command, check=True, timeout=60)  # noqa: ASYNC221
            assert len((await real.openai.models.list()).data) == 2
    assert [each.getMessage() for each in found] == []
