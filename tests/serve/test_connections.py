"""A server accepts as many connections as the system's limit of open files allows (docs/server.md)."""

import resource
from collections.abc import Iterator

import pytest

from kitchener.serve.connections import connections_within


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
    assert connections_within(hard) == hard - 512
