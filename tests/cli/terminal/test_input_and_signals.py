"""What the commands share with the outside on either event loop: lines, signals, the bar."""

import re
import signal
import sys
from pathlib import Path

import anyio
import pytest

from kitchener.cli.terminal.progress import progress_bar
from kitchener.cli.terminal.stop_signals import on_signal
from kitchener.cli.terminal.typed_lines import TypedLines
from kitchener.errors import CallerError


async def test_lines_come_one_by_one_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "input"
    path.write_bytes("first\r\n\nlast ü".encode())
    with path.open() as file, anyio.fail_after(5):
        monkeypatch.setattr(sys, "stdin", file)
        lines = TypedLines(None)
        assert [await lines.next() for _ in range(5)] == ["first", "", "last ü", None, None]
        lines.close()


async def test_a_line_that_is_not_text_is_an_error_of_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"\xff\n")
    with path.open() as file, anyio.fail_after(5):
        monkeypatch.setattr(sys, "stdin", file)
        lines = TypedLines(None)
        with pytest.raises(CallerError, match="not UTF-8 text"):
            await lines.next()
        lines.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_goes_to_the_command_as_long_as_it_asks_for_more(number: signal.Signals) -> None:
    seen: list[signal.Signals] = []
    came = [anyio.Event(), anyio.Event()]

    def note(found: signal.Signals) -> bool:
        seen.append(found)
        came[len(seen) - 1].set()
        return True

    with anyio.fail_after(5):
        async with on_signal(note):
            for event in came:
                signal.raise_signal(number)
                await event.wait()
    assert seen == [number, number]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_is_again_for_whom_it_was_after_a_command(number: signal.Signals) -> None:
    """Regression: on asyncio, SIGTERM ended a command that was closing its ledgers with 143."""

    def own(_: int, __: object) -> None: ...

    before = signal.signal(number, own)
    try:
        with anyio.fail_after(5):
            async with on_signal(lambda _: None):
                pass
        assert signal.getsignal(number) is own
    finally:
        signal.signal(number, before)


async def test_the_end_of_a_terminal_counts_once_and_not_where_it_is_ignored() -> None:
    """A terminal and its shell may each tell that it is closed. With `nohup` neither is heard."""
    seen: list[signal.Signals] = []
    came = anyio.Event()

    def note(found: signal.Signals) -> None:
        seen.append(found)
        came.set()

    with anyio.fail_after(5):
        async with on_signal(note):
            signal.raise_signal(signal.SIGHUP)
            await came.wait()
            signal.raise_signal(signal.SIGHUP)  # would end this process
            await anyio.sleep(0.01)
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            async with on_signal(note):
                signal.raise_signal(signal.SIGHUP)
                await anyio.sleep(0.01)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        finally:
            signal.signal(signal.SIGHUP, before)
    assert seen == [signal.SIGHUP]


async def test_the_bar_follows_the_work_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with progress_bar("turns", 7, lambda: 3):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    asked = anyio.Event()

    def done() -> int:
        asked.set()
        return 3

    with anyio.fail_after(5):
        async with progress_bar("turns", 7, done):
            await asked.wait()
    assert "3/7 turns" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
