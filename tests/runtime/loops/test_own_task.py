"""A runtime may be closed in another task if the task that opened it has ended; else it says what to do (docs/runtime.md)."""

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from textwrap import dedent

import anyio
import pytest

from kitchener.config import LedgerConfig, RuntimeConfig
from kitchener.errors import ActorStopped, CallerError, KitchenerError, RuntimeClosed
from kitchener.runtime import Runtime, open_runtime
from tests.acceptance.sessions.test_shutdown import BrokenForExecutors
from tests.acceptance.stack import open_scripted
from tests.cli.shared.commands import finish, start_program

# On trio, a nursery that is left in another task breaks the run before anything can be raised.
pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])


def runtime_of(root: Path) -> AbstractAsyncContextManager[Runtime]:
    return open_runtime(RuntimeConfig(plane_root=str(root), ledger=LedgerConfig(durability="os", linger_ms=0)))


async def opened_elsewhere(opened: AbstractAsyncContextManager[Runtime]) -> Runtime:
    """Opens a runtime in a task that ends, as a fixture of pytest-asyncio does."""
    return await asyncio.ensure_future(opened.__aenter__())


async def closed_elsewhere(opened: AbstractAsyncContextManager[Runtime], error: Exception | None = None) -> object:
    """Closes a runtime in a task of its own."""
    return await asyncio.ensure_future(opened.__aexit__(type(error) if error else None, error, None))


async def can_be_opened_again(root: Path, session_id: str) -> bool:
    async with runtime_of(root) as runtime:
        again = await runtime.supervisor().handle_turn("hello", session_id=session_id, subject_id="ada")
    return again.turn_id.endswith("-000002")


async def test_a_runtime_whose_opening_task_has_ended_is_closed_in_any_other(tmp_path: Path) -> None:
    """As fixtures of pytest-asyncio, `IsolatedAsyncioTestCase` and the cells of a notebook do."""
    with anyio.fail_after(20):
        opened = runtime_of(tmp_path)
        runtime = await opened_elsewhere(opened)
        first = await runtime.supervisor().handle_turn("hello", subject_id="ada")
        assert await closed_elsewhere(opened) is False
        with pytest.raises(RuntimeClosed):
            await runtime.supervisor().handle_turn("are you there?")
        assert await can_be_opened_again(tmp_path, first.session_id)


async def test_an_error_of_the_block_is_raised_there_as_it_is(tmp_path: Path) -> None:
    opened, mine = runtime_of(tmp_path), ValueError("of the block")
    with anyio.fail_after(20):
        await opened_elsewhere(opened)
        assert await closed_elsewhere(opened, mine) is False, "the caller raises it again, as for any context manager"


async def test_an_actor_that_stopped_is_told_there_too(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        opened = open_scripted(tmp_path, clock=BrokenForExecutors(), limits={"max_restarts": 3})
        runtime = await opened_elsewhere(opened)
        for n in range(8):
            try:
                await runtime.supervisor().handle_turn(f"message {n}")
            except KitchenerError:  # the runtime has stopped, and cannot end this task
                break
        with pytest.raises(ActorStopped) as caught:
            await closed_elsewhere(opened)
    assert isinstance(caught.value.__cause__, ArithmeticError)


async def test_the_closing_task_can_be_cancelled(tmp_path: Path) -> None:
    """Its cancellation comes through, and no error takes its place."""
    with anyio.fail_after(20):
        opened = runtime_of(tmp_path)
        await opened_elsewhere(opened)
        closing = asyncio.ensure_future(opened.__aexit__(None, None, None))
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()


@pytest.mark.parametrize("body_error", [None, ValueError("of the block")])
async def test_closing_beside_the_task_that_opened_says_what_to_do(tmp_path: Path, body_error: Exception | None) -> None:
    """The opening task still runs, in a cancel scope that it can never leave. The ledgers are closed all the same."""
    opened, is_done = runtime_of(tmp_path), asyncio.Event()

    async def open_and_go_on() -> None:
        opening.set_result(await opened.__aenter__())
        await is_done.wait()

    with anyio.fail_after(20):
        opening: asyncio.Future[Runtime] = asyncio.get_running_loop().create_future()
        going_on = asyncio.ensure_future(open_and_go_on())
        first = await (await opening).supervisor().handle_turn("hello", subject_id="ada")
        with pytest.raises(CallerError, match="in another task than it was opened in, which still runs: open and") as caught:
            await closed_elsewhere(opened, body_error)
        is_done.set()
        await going_on
        assert await can_be_opened_again(tmp_path, first.session_id)
    assert caught.value.__cause__ is body_error if body_error else isinstance(caught.value.__cause__, RuntimeError)


async def test_an_error_about_scopes_in_the_own_task_is_no_such_mistake(tmp_path: Path) -> None:
    """An error of the block itself passes as it is."""
    with pytest.raises(RuntimeError, match="of the block"):
        async with runtime_of(tmp_path):
            raise RuntimeError("of the block")


PROGRAMS = {
    "a block that is never left": """
        import asyncio, sys
        from kitchener import open_runtime

        async def main():
            global kept
            kept = open_runtime(root=sys.argv[1])
            runtime = await kept.__aenter__()
            await runtime.supervisor().handle_turn("hello", subject_id="ada")

        asyncio.run(main())
    """,
    "an interrupt that leaves everything": """
        import asyncio, sys
        from kitchener import open_runtime

        async def main():
            async with open_runtime(root=sys.argv[1]) as runtime:
                await runtime.supervisor().handle_turn("hello", subject_id="ada")
                loop = asyncio.get_running_loop()
                loop.call_soon(sys.exit, 0)  # as a second Ctrl-C: out of the event loop, whose tasks asyncio then cancels
                await asyncio.sleep(60)

        asyncio.run(main())
    """,
    "a handler that cancels all tasks": """
        import asyncio, sys
        from kitchener import open_runtime

        async def stop(loop):
            tasks = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            loop.stop()

        async def main():
            async with open_runtime(root=sys.argv[1]) as runtime:
                await runtime.supervisor().handle_turn("hello", subject_id="ada")
                kept.append(asyncio.ensure_future(stop(asyncio.get_running_loop())))
                await asyncio.sleep(60)

        kept, loop = [], asyncio.new_event_loop()
        kept.append(loop.create_task(main()))
        loop.run_forever()
        loop.close()
    """,
}


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_program_that_stops_all_its_tasks_reads_nothing_of_them(tmp_path: Path, program: str) -> None:
    """Regression: three tracebacks of `ActorStopped`, each of a task that was cancelled by something other than the runtime."""
    root = tmp_path / "root"
    ended = await anyio.to_thread.run_sync(lambda: finish(start_program(dedent(PROGRAMS[program]), root)))
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    async with runtime_of(root) as runtime:
        assert [each.turns for each in await runtime.sessions(subject_id="ada")] == [1]
