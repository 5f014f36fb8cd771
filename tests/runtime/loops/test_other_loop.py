"""A runtime is closed on its own event loop, and says so on another one; a closed loop costs no entry (docs/runtime.md)."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path

import anyio
import pytest

from kitchener.errors import CallerError, LedgerLocked, LedgerWriteError
from kitchener.ledger import LedgerEntry, verify_file
from kitchener.records.prompt import PromptRequest
from kitchener.runtime import Runtime, open_runtime
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import echo, read_all, scripted_config, types_of


class Held(ScriptedProvider):
    """Answers at once, but not within a test if it is asked about the door."""

    def __init__(self) -> None:
        super().__init__(echo, gate=self._gate)
        self.is_asked = threading.Event()

    async def _gate(self, request: PromptRequest) -> None:
        if "the door" in str(request.messages):
            self.is_asked.set()
            await asyncio.sleep(60)


def opened(root: Path, provider: ScriptedProvider | None = None) -> AbstractAsyncContextManager[Runtime]:
    known = {"scripted": provider or ScriptedProvider(echo)}
    return open_runtime(scripted_config(root, ho3_enabled=True), providers=known, admin_socket=True)


@contextmanager
def a_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    try:
        yield loop
    finally:
        loop.close()


async def closed(held: AbstractAsyncContextManager[Runtime], error: Exception | None = None) -> bool | None:
    with anyio.fail_after(20):
        return await held.__aexit__(type(error) if error else None, error, None)


async def turns_of_ada(root: Path) -> list[int]:
    async with opened(root) as runtime:
        return [each.turns for each in await runtime.sessions(subject_id="ada")]


async def goes_on(root: Path, subject_id: str) -> None:
    """Asserts that the turn that was cut off is aborted on record when its session goes on, as after a crash."""
    async with opened(root) as runtime:
        (session,) = await runtime.sessions(subject_id=subject_id)
        await runtime.supervisor().handle_turn("hello", session_id=session.session_id)
        written = types_of(await read_all(runtime.ledgers().ho2m, session_id=session.session_id))
    assert [each for each in written if each.startswith("TURN_")] == [
        "TURN_STARTED",
        "TURN_ABORTED",
        "TURN_STARTED",
        "TURN_COMPLETED",
    ]


def test_a_closed_loop_costs_no_entry_and_releases_the_root(tmp_path: Path) -> None:
    """Regression: closing waited for tasks that no event loop runs any more, and so did its cancellation."""
    with a_loop() as loop:

        async def use() -> Runtime:
            runtime = await held.__aenter__()
            ada = runtime.supervisor()
            await ada.handle_turn("hello", subject_id="ada")
            running.append(asyncio.ensure_future(ada.handle_turn("is the door closed?", subject_id="bo")))
            await asyncio.to_thread(provider.is_asked.wait, 20)
            await runtime.ledgers().context.write(LedgerEntry("CONFLICT_FLAG", "mine", {"note": "not committed"}))
            return runtime

        running: list[asyncio.Future[object]] = []
        provider = Held()
        held = opened(tmp_path, provider)
        runtime = loop.run_until_complete(use())
    with pytest.raises(LedgerLocked):
        asyncio.run(turns_of_ada(tmp_path))
    mine = ValueError("of the block")
    with pytest.raises(CallerError, match=r"event loop of the runtime was closed before the runtime.* with all that") as caught:
        asyncio.run(closed(held, mine))
    assert caught.value.__cause__ is mine
    assert asyncio.run(closed(held)) is None, "it is closed already"
    text = (tmp_path / "HO2" / "ADMIN" / "context.jsonl").read_text(encoding="utf-8")
    assert '"mine"' in text, "an entry that no turn had committed is durable"
    assert not list((tmp_path / "admin").glob("socket*")), "and commands find nobody"
    with pytest.raises(CallerError, match="another event loop"):
        asyncio.run(runtime.supervisor().handle_turn("hello"))
    assert asyncio.run(turns_of_ada(tmp_path)) == [1]
    for path in sorted(tmp_path.rglob("*.jsonl")):
        verify_file(path)  # raises if it is damaged
    asyncio.run(goes_on(tmp_path, "bo"))


def test_entries_that_cannot_be_written_after_that_are_told(tmp_path: Path) -> None:
    """The root is released all the same."""
    path = tmp_path / "HO1" / "ADMIN" / "ho1m.jsonl"
    with a_loop() as loop:
        held = opened(tmp_path)

        async def use() -> None:
            runtime = await held.__aenter__()
            await runtime.supervisor().handle_turn("hello", subject_id="ada")
            await runtime.ledgers().ho1m.write(LedgerEntry("LLM_CALL", "mine", {"note": "not committed"}))
            path.write_bytes(path.read_bytes() + b"more")

        loop.run_until_complete(use())
    with pytest.raises(LedgerWriteError, match="somebody else wrote to it"):
        asyncio.run(closed(held))
    path.write_bytes(path.read_bytes().removesuffix(b"more"))
    assert asyncio.run(turns_of_ada(tmp_path)) == [1]


def test_a_stopped_loop_keeps_its_runtime_open(tmp_path: Path) -> None:
    """Its tasks can go on, so nothing is taken from them. Regression: closing waited for ever."""
    with a_loop() as loop:
        held = opened(tmp_path)
        runtime = loop.run_until_complete(held.__aenter__())
        with pytest.raises(CallerError, match=r"by `loop\.run_until_complete.* It is still open"):
            asyncio.run(closed(held))
        loop.run_until_complete(runtime.supervisor().handle_turn("hello", subject_id="ada"))
        assert loop.run_until_complete(closed(held)) is False
    assert asyncio.run(turns_of_ada(tmp_path)) == [1]


def test_a_loop_of_another_thread_keeps_its_runtime_open(tmp_path: Path) -> None:
    """As the loop of a thread of the program's own, which the main thread closes by mistake."""
    with a_loop() as loop:
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            held = opened(tmp_path)
            asyncio.run_coroutine_threadsafe(held.__aenter__(), loop).result(20)
            with pytest.raises(CallerError, match=r"by `asyncio\.run_coroutine_threadsafe.* It is still open"):
                asyncio.run(closed(held))
            assert asyncio.run_coroutine_threadsafe(closed(held), loop).result(20) is False
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(20)
    assert asyncio.run(turns_of_ada(tmp_path)) == []
