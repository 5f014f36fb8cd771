"""A server whose disk takes no more bytes: nothing is acknowledged, what is on record can be read, and the operator is told."""

import errno
from pathlib import Path

import pytest

from kitchener.errors import LedgerWriteError
from kitchener.ledger.disk.file_ops import FileOps
from tests.logs import captured_logs
from tests.serve.requests import serving


def full(_: FileOps, __: int, ___: bytes | memoryview) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


async def talk_on_a_full_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server says from the moment on at which its disk is full. Closing it raises."""
    async with serving(root) as client:
        first = await client.chat("hello", stream=False)
        assert (first.status, (await client.ask("GET", "/readyz")).status) == (200, 200)
        monkeypatch.setattr(FileOps, "write", full)
        for _ in range(3):
            assert (await client.chat("lost")).status == 500
        ready = await client.ask("GET", "/readyz")
        assert (ready.status, ready.body) == (503, b"a ledger takes no more entries; the log says why\n")
        assert (await client.ask("GET", "/healthz")).status == 200
        session = first.headers["x-kitchener-session"]
        (turn,) = (await client.ask("GET", f"/v1/sessions/{session}/messages")).json["turns"]
        assert turn["response"] == "echo: hello"


async def test_a_server_on_a_full_disk_is_not_ready_and_its_log_says_why_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: it told proxies and supervisors that it was ready, and refused every turn until somebody restarted it."""
    with captured_logs() as logged, pytest.raises(LedgerWriteError):
        await talk_on_a_full_disk(tmp_path / "root", monkeypatch)
    (told,) = [each for each in logged if each["event"].startswith("ledger takes no more entries")]
    assert (told["log_level"], told["problem"]) == ("error", "No space left on device")

    monkeypatch.undo()
    async with serving(tmp_path / "root") as client:
        assert (await client.ask("GET", "/readyz")).status == 200
        assert (await client.chat("hello again")).text == "echo: hello again"
