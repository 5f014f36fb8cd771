"""Work that begins when a reply is delivered: bounded, waited for, ended by a shutdown; explained in docs/memory.md."""

from functools import partial

import anyio

from kitchener.actors.consolidation.triggers import BackgroundJobs
from tests.shared.logs import captured_logs


async def hang() -> None:
    await anyio.sleep_forever()


async def test_it_runs_what_it_is_given_and_tells_when_nothing_is_left() -> None:
    done: list[int] = []

    async def work(n: int) -> None:
        await anyio.lowlevel.checkpoint()
        done.append(n)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            jobs = BackgroundJobs(tasks, 10)
            await jobs.wait_idle()
            for n in range(3):
                jobs.start(partial(work, n))
            assert (jobs.pending, done) == (3, [])  # it never runs within the call
            await jobs.wait_idle()
            assert (jobs.pending, sorted(done)) == (0, [0, 1, 2])


async def test_what_comes_beyond_the_limit_is_left_out_with_a_word() -> None:
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            jobs = BackgroundJobs(tasks, 2)
            with captured_logs() as logs:
                for _ in range(5):
                    jobs.start(hang)
            assert jobs.pending == 2
            assert [each["event"] for each in logs] == ["consolidation left out"] * 3
            jobs.cancel()
            await jobs.wait_idle()


async def test_a_failing_piece_of_work_is_logged_and_nothing_else() -> None:
    async def fail() -> None:
        raise RuntimeError("broken")

    with anyio.fail_after(5), captured_logs() as logs:
        async with anyio.create_task_group() as tasks:
            jobs = BackgroundJobs(tasks, 10)
            jobs.start(fail)
            await jobs.wait_idle()
    [line] = logs
    assert line["event"] == "consolidation failed"
    assert line["error"].startswith("RuntimeError at test_background.py:")


async def test_cancelling_ends_what_runs_and_takes_no_more() -> None:
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            jobs = BackgroundJobs(tasks, 10)
            jobs.start(hang)
            await anyio.wait_all_tasks_blocked()
            jobs.cancel()
            jobs.start(hang)
            await jobs.wait_idle()
            assert jobs.pending == 0


async def test_cancelling_also_ends_what_was_given_and_has_not_begun() -> None:
    """A turn that ends in the moment of a shutdown leaves nothing that runs on behind it."""
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            jobs = BackgroundJobs(tasks, 10)
            jobs.start(hang)
            jobs.cancel()
            await jobs.wait_idle()
            assert jobs.pending == 0


async def test_any_number_may_wait() -> None:
    ended: list[int] = []
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            jobs = BackgroundJobs(tasks, 10)
            jobs.start(hang)

            async def wait(n: int) -> None:
                await jobs.wait_idle()
                ended.append(n)

            for n in range(3):
                tasks.start_soon(wait, n)
            await anyio.wait_all_tasks_blocked()
            assert ended == []
            jobs.cancel()
    assert sorted(ended) == [0, 1, 2]
