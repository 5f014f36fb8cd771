"""A server accepts as many connections as the system's limit of open files allows (docs/server.md)."""

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kitchener.serve.connections import connections_within
from tests.logs import captured_logs
from tests.serve.test_log_limit import records_of
from tests.serve.test_openai_client import listening


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


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
