"""Shared by the acceptance tests: a supervisor assembled by hand, and a whole runtime, each around a script."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from kitchener.runtime import Runtime
from tests.acceptance.stack import Stack, open_by_hand, open_scripted

OpenStack = Callable[..., AbstractAsyncContextManager[Stack]]
OpenRuntime = Callable[..., AbstractAsyncContextManager[Runtime]]


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    """A supervisor around an HO1 that gives every work order a fitting output."""
    async with open_by_hand(tmp_path) as opened:
        yield opened


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    """A runtime whose model repeats the message."""
    async with open_scripted(tmp_path) as opened:
        yield opened


@pytest.fixture
def by_hand(tmp_path: Path) -> OpenStack:
    """Opens a supervisor around the executor and settings that the test gives; ledgers are under `tmp_path`."""
    return partial(open_by_hand, tmp_path)


@pytest.fixture
def scripted(tmp_path: Path) -> OpenRuntime:
    """Opens a runtime around the provider and settings that the test gives; ledgers are under `tmp_path`."""
    return partial(open_scripted, tmp_path)
