"""A server whose ledgers take no more entries says so, and refuses requests that it could not record (docs/server.md)."""

import errno
from pathlib import Path

import anyio
import pytest

from kitchener.errors import LedgerWriteError
from kitchener.ledger.disk.file_ops import FileOps
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import Hold, echo
from tests.serve.shared.requests import COMPLETIONS, Asked, chat_body, serving
from tests.shared.logs import captured_logs


def full_disk(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_server_with_a_full_disk_is_not_ready_and_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, asked = Hold("wait", wo_type="synthesize"), Asked()
    asked.taking.set()
    with captured_logs() as logs, pytest.raises(LedgerWriteError, match="No space left"):  # noqa: PT012  raised as the runtime closes
        async with serving(tmp_path / "root", ScriptedProvider(echo, gate=hold)) as client, anyio.create_task_group() as tasks:
            assert (await client.chat("hello")).text == "echo: hello"
            tasks.start_soon(client.run, asked, "POST", COMPLETIONS, chat_body("wait"))
            await hold.arrived["wait"].wait()
            monkeypatch.setattr(FileOps, "write", full_disk)
            failed = await client.chat("hello")
            assert (failed.status, failed.code, failed.headers["x-should-retry"]) == (500, "internal_error", "false")

            await client.server.unwritable.wait()
            ready, healthy = await client.ask("GET", "/readyz"), await client.ask("GET", "/healthz")
            assert (ready.status, ready.body, healthy.status) == (503, b"ledgers take no more entries\n", 200)
            refused = await client.chat("hello")
            assert (refused.status, refused.code, refused.headers["x-should-retry"]) == (503, "shutting_down", "true")
            assert await client.server.drain() is False
            await asked.done.wait()
    assert (asked.status, asked.code) == (503, "shutting_down")
    assert "take no more entries" in asked.json["error"]["message"], "nothing is aborted on record"
    (told,) = [each for each in logs if "ledgers take no more entries" in each["event"]]
    assert (told["log_level"], told["problem"]) == ("error", "No space left on device")
    assert told["path"].startswith(str(tmp_path))


async def test_a_server_that_can_write_never_says_that_it_cannot(tmp_path: Path) -> None:
    async with serving(tmp_path / "root") as client:
        await client.chat("hello")
        assert (client.server.write_failure, client.server.unwritable.is_set()) == (None, False)
        await client.server.drain()
        assert (await client.ask("GET", "/readyz")).body == b"draining\n"
