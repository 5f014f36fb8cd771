"""A runtime is closed in the task that opened it; elsewhere it says what to do (docs/runtime.md)."""

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest

from kitchener.config import LedgerConfig, RuntimeConfig
from kitchener.errors import CallerError
from kitchener.runtime import Runtime, open_runtime

# On trio, a nursery that is left in another task breaks the run before anything can be raised.
pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])


def runtime_of(root: Path) -> AbstractAsyncContextManager[Runtime]:
    return open_runtime(RuntimeConfig(plane_root=str(root), ledger=LedgerConfig(durability="os", linger_ms=0)))


async def closed_elsewhere(opened: AbstractAsyncContextManager[Runtime], error: Exception | None = None) -> CallerError:
    """The error of closing an open runtime in a task of its own."""
    closing = asyncio.ensure_future(opened.__aexit__(type(error) if error else None, error, None))
    with pytest.raises(CallerError, match="closed in another task than it was opened in: open and close it in one") as caught:
        await closing
    return caught.value


@pytest.mark.parametrize("body_error", [None, ValueError("of the block")])
async def test_closing_in_another_task_says_what_to_do(tmp_path: Path, body_error: Exception | None) -> None:
    with anyio.fail_after(20):
        opened = runtime_of(tmp_path)
        runtime = await asyncio.ensure_future(opened.__aenter__())
        assert (await runtime.supervisor().handle_turn("hello")).response
        error = await closed_elsewhere(opened, body_error)
    assert error.__cause__ is body_error if body_error else isinstance(error.__cause__, RuntimeError)


async def test_the_ledgers_are_closed_all_the_same(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        opened = runtime_of(tmp_path)
        first = await (await asyncio.ensure_future(opened.__aenter__())).supervisor().handle_turn("hello", subject_id="ada")
        await closed_elsewhere(opened)
        async with runtime_of(tmp_path) as runtime:
            again = await runtime.supervisor().handle_turn("hello", session_id=first.session_id, subject_id="ada")
    assert again.turn_id.endswith("-000002")


async def test_an_error_about_scopes_in_the_own_task_is_no_such_mistake(tmp_path: Path) -> None:
    """An error of the block itself passes as it is."""
    with pytest.raises(RuntimeError, match="of the block"):
        async with runtime_of(tmp_path):
            raise RuntimeError("of the block")
