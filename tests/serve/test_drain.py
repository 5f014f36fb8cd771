"""A server that is told to stop answers those that it has, and loses nothing (docs/server.md)."""

from pathlib import Path

import anyio

from kitchener.records import events
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import Hold, echo
from tests.serve.requests import COMPLETIONS, Asked, chat_body, serving


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
        found = [each.entry_type async for each in client.runtime.ledgers().ho2m.read(entry_type=events.TURN_ABORTED)]
        assert found == [events.TURN_ABORTED]
