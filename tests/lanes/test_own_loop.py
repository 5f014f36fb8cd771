"""A runtime takes calls only on the event loop, and in the thread, that opened it (docs/runtime.md)."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kitchener import Runtime, open_runtime
from kitchener.errors import CallerError
from kitchener.lanes.own_loop import OwnLoop

CALLS: dict[str, Callable[[Runtime], Awaitable[object]]] = {
    "a turn": lambda runtime: runtime.supervisor().handle_turn("hello"),
    "a session": lambda runtime: runtime.supervisor().start_session(),
    "a list": lambda runtime: runtime.sessions(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_from_another_event_loop_of_the_thread_is_refused(tmp_path: Path, call: str) -> None:
    """As of a test on its own event loop, whose fixture opened the runtime on that of the session. The call disturbed the
    runtime's tasks, and closing it never ended."""
    with asyncio.Runner() as first:
        opened = open_runtime(root=tmp_path)
        runtime = first.run(opened.__aenter__())
        with asyncio.Runner() as second, pytest.raises(CallerError, match="opened on another event loop, and takes calls only"):
            second.run(as_coroutine(CALLS[call](runtime)))
        assert first.run(runtime.supervisor().handle_turn("hello")).response
        first.run(asyncio.wait_for(opened.__aexit__(None, None, None), 20))


async def as_coroutine(work: Awaitable[object]) -> object:
    return await work


async def test_the_event_loop_itself_may_call() -> None:
    OwnLoop().check()


def test_without_an_event_loop_only_the_thread_counts() -> None:
    made = OwnLoop()
    made.check()
    found: list[CallerError] = []

    def elsewhere() -> None:
        try:
            made.check()
        except CallerError as error:
            found.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(found) == 1

    async def on_a_loop() -> None:
        made.check()

    asyncio.run(on_a_loop())
