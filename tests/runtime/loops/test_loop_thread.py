"""A runtime in a thread of its own: closed once, by whoever comes first, and useless to a forked child. See docs/runtime.md."""

import pickle
import signal
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent

import anyio
import anyio.to_thread
import pytest

from kitchener import open_runtime, open_sync
from kitchener.errors import CallerError, RuntimeClosed
from kitchener.runtime.loops.loop_thread import LoopThread
from tests.cli.shared.commands import Outcome, finish, start_program
from tests.runtime.test_synchronous import BACKENDS, Backend


def run_program(folder: Path, text: str) -> Outcome:
    """Runs a program with a root as its argument, to which each warning is an error."""
    strict = "import warnings\nwarnings.simplefilter('error')\n"
    return finish(start_program(strict + dedent(text), folder / "root"))


@pytest.mark.parametrize("opened", ["open_sync(root=sys.argv[1])", "open_sync(root=sys.argv[1]).__enter__()"])
def test_a_program_that_never_closes_its_runtime_ends_all_the_same(tmp_path: Path, opened: str) -> None:
    """As a notebook does, or a module that opens one when it is imported. Regression: the interpreter waited for ever."""
    ended = run_program(tmp_path, f"import sys\nfrom kitchener import open_sync\nagent = {opened}\nagent.ask('hello')")
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    with open_sync(root=tmp_path / "root") as agent:
        assert [each.turns for each in agent.call(agent.runtime.sessions)] == [1]


def test_a_child_of_fork_is_told_and_ends(tmp_path: Path) -> None:
    """As a worker of gunicorn or Celery whose parent opened the runtime. Regression: its calls and its end waited for ever."""
    program = """
        import os, sys
        from kitchener import CallerError, open_sync

        with open_sync(root=sys.argv[1]) as agent:
            agent.ask("hello")
            child = os.fork()
            if child == 0:
                try:
                    agent.ask("hello")
                except CallerError as error:
                    print(error, flush=True)
                agent.close()
                sys.exit(3)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), agent.ask("are you there?").turn_id[-6:])
    """
    ended = run_program(tmp_path, program)
    assert (ended.code, ended.err) == (0, "")
    told, parent = ended.out.splitlines()
    assert told.startswith("the runtime was opened in process ")
    assert told.endswith("open one after the fork, and one process for each root")
    assert parent == "3 000002"


@BACKENDS
def test_without_a_block_it_is_closed_by_hand(tmp_path: Path, backend: Backend) -> None:
    agent = open_sync(root=tmp_path, backend=backend)
    assert agent.ask("hello").response
    agent.close()
    agent.close()
    with pytest.raises(RuntimeClosed, match=r"or before `close\(\)`"):
        agent.ask("are you there?")
    with open_sync(root=tmp_path, backend=backend) as again:
        assert again.ask("hello").response


@pytest.mark.filterwarnings("always::ResourceWarning")
def test_one_that_nobody_has_any_more_is_closed_with_a_warning(tmp_path: Path) -> None:
    kept = [open_sync(root=tmp_path)]
    kept[0].ask("hello")
    with pytest.warns(ResourceWarning, match="a runtime of `open_sync` was not closed"):
        kept.clear()
    with open_sync(root=tmp_path) as again:
        assert again.ask("hello").response


@BACKENDS
def test_threads_that_ask_at_once_begin_one_session(tmp_path: Path, backend: Backend) -> None:
    """Regression: each of them began a session of its own."""
    with open_sync(root=tmp_path, backend=backend) as agent, ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda n: agent.ask(f"message {n}"), range(8)))
    assert {each.session_id for each in results} == {agent.session_id}


@BACKENDS
def test_a_call_from_the_event_loop_of_the_runtime_is_refused(tmp_path: Path, backend: Backend) -> None:
    with open_sync(root=tmp_path, backend=backend) as agent:

        async def ask() -> str:
            return agent.ask("hello").response

        with pytest.raises(CallerError, match="which would wait for ever: await the coroutine functions"):
            agent.call(ask)
        agent.call(closed_inside, agent.close)


async def closed_inside(close: object) -> None:
    """The garbage collector may close a runtime anywhere, also there."""
    assert callable(close)
    close()


def test_it_cannot_be_sent_to_another_process(tmp_path: Path) -> None:
    with open_sync(root=tmp_path) as agent, pytest.raises(CallerError, match="cannot be sent to another process"):
        pickle.dumps(agent)


@BACKENDS
def test_ctrl_c_while_it_opens_ends_the_thread(backend: Backend) -> None:
    ended = threading.Event()

    @asynccontextmanager
    async def opening() -> AsyncIterator[None]:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        try:
            await anyio.sleep_forever()
            yield
        finally:
            ended.set()

    assert threading.current_thread() is threading.main_thread()
    with pytest.raises(KeyboardInterrupt):
        LoopThread(opening(), backend, "opening")
    assert ended.is_set()
    assert "opening" not in [each.name for each in threading.enumerate()]


@BACKENDS
def test_ctrl_c_while_it_closes_leaves_the_rest_to_the_next_who_waits(backend: Backend) -> None:
    """As the end of the interpreter does, so that the ledgers are closed in order."""
    go_on, ended = threading.Event(), threading.Event()

    @asynccontextmanager
    async def opened() -> AsyncIterator[None]:
        yield
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        await anyio.to_thread.run_sync(go_on.wait)
        ended.set()

    thread = LoopThread(opened(), backend, "closing")
    with pytest.raises(KeyboardInterrupt):
        thread.close()
    assert not ended.is_set()
    go_on.set()
    thread.close()
    assert ended.is_set()


async def test_an_async_program_may_have_one_beside_its_own(tmp_path: Path) -> None:
    """It blocks the event loop for each call, and works."""
    async with open_runtime(root=tmp_path / "one") as runtime:
        with open_sync(root=tmp_path / "two") as agent:
            assert agent.ask("hello").response == (await runtime.supervisor().handle_turn("hello")).response
