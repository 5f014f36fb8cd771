"""A server that is told to stop answers its running requests, and loses nothing (docs/server.md)."""

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import orjson
import pytest

from kitchener.config import ServeConfig
from kitchener.records import events
from kitchener.serve.application import open_listener
from kitchener.serve.uvicorn_server import listen
from kitchener.testing import ScriptedProvider
from tests.acceptance.memory.memory_kit import EASY, Pause, overlays, student
from tests.acceptance.stack import Hold, echo
from tests.serve.shared.requests import COMPLETIONS, Asked, chat_body, serving


async def test_a_draining_server_refuses_new_requests_and_answers_the_old(tmp_path: Path) -> None:
    hold = Hold("wait", wo_type="synthesize")
    async with serving(tmp_path / "root", ScriptedProvider(echo, gate=hold)) as client:
        assert (await client.ask("GET", "/readyz")).status == 200
        asked, drained = Asked(), list[bool]()
        asked.taking.set()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.run, asked, "POST", COMPLETIONS, chat_body("wait"))
            await hold.arrived["wait"].wait()

            async def drain() -> None:
                drained.append(await client.server.drain())

            tasks.start_soon(drain)
            while (ready := await client.ask("GET", "/readyz")).status == 200:
                await anyio.lowlevel.checkpoint()
            assert (ready.status, ready.body) == (503, b"draining\n")
            assert (await client.ask("GET", "/healthz")).status == 200
            refused = await client.chat("hello")
            assert (refused.status, refused.code, "retry-after" in refused.headers) == (503, "shutting_down", True)
            assert drained == []
            hold.released["wait"].set()
        assert (asked.status, asked.text, drained) == (200, "echo: wait", [True])


async def test_a_turn_beyond_the_grace_time_is_aborted_on_record_and_its_client_told(tmp_path: Path) -> None:
    hold = Hold("wait", wo_type="synthesize")
    provider, limits = ScriptedProvider(echo, gate=hold), {"shutdown_grace_s": 0.01}
    async with serving(tmp_path / "root", provider, limits=limits) as client:
        asked = Asked()
        asked.taking.set()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.run, asked, "POST", COMPLETIONS, chat_body("wait"))
            await hold.arrived["wait"].wait()
            assert await client.server.drain() is False
        assert (asked.status, asked.code) == (503, "shutting_down")
        assert (asked.headers["x-should-retry"], "retry-after" in asked.headers) == ("false", False)  # its tools may have run
        found = [each.entry_type async for each in client.runtime.ledgers().ho2m.read(entry_type=events.TURN_ABORTED)]
        assert found == [events.TURN_ABORTED]


async def test_what_is_being_learned_is_learned_before_the_server_ends(tmp_path: Path) -> None:
    pause = Pause()
    async with anyio.create_task_group() as tasks, serving(tmp_path / "root", student(gate=pause), **EASY) as client:
        await client.chat("hello")
        await pause.arrived.wait()
        assert await client.server.drain() is True
        assert client.runtime.statistics()["pending_consolidations"] == 1

        async def let_go() -> None:
            await anyio.wait_all_tasks_blocked()
            pause.released.set()

        tasks.start_soon(let_go)
    assert len(overlays(tmp_path / "root")) == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_connections_of_a_shared_socket_wait_for_the_next_server_while_this_one_drains(tmp_path: Path) -> None:
    """One event loop: uvicorn has no other."""
    hold, told, ready = Hold("wait", wo_type="synthesize"), list[Callable[[signal.Signals], bool | None]](), anyio.Event()

    @asynccontextmanager
    async def on_signal(first: Callable[[signal.Signals], bool | None]) -> AsyncIterator[None]:
        told.append(first)
        yield

    async with serving(tmp_path / "root", ScriptedProvider(echo, gate=hold)) as client, anyio.create_task_group() as tasks:
        listener = open_listener(ServeConfig(port=0))
        with listener.dup() as kept:
            config, stopping = client.runtime.config, anyio.Event()

            async def run() -> None:
                await listen(
                    client.server,
                    listener,
                    config=config,
                    on_signal=on_signal,
                    ready=ready.set,
                    stopping=stopping.set,
                    is_shared=True,
                )
                kept.setblocking(False)
                waiting, _ = kept.accept()  # whoever connected meanwhile
                with waiting:
                    waiting.sendall(b"from the next server")

            tasks.start_soon(run)
            await ready.wait()
            address, body = kept.getsockname(), orjson.dumps(chat_body("wait"))
            head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            async with await anyio.connect_tcp(*address) as busy, await anyio.connect_tcp(*address) as idle:
                await idle.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert (await idle.receive()).startswith(b"HTTP/1.1 200")
                await busy.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                await hold.arrived["wait"].wait()
                told[0](signal.SIGTERM)
                await stopping.wait()
                async with await anyio.connect_tcp(*address) as late:
                    assert [each async for each in idle if b"200" in each] == []
                    hold.released["wait"].set()
                    answer = b"".join([each async for each in busy])
                    assert (b" 200 OK" in answer, b"connection: close" in answer, b"echo: wait" in answer) == (True, True, True)
                    assert await late.receive() == b"from the next server"
