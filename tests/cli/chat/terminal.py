"""A chat on a terminal of its own, for tests that type."""

import contextlib
import fcntl
import os
import pty
import signal
import struct
import termios
from collections.abc import Sequence
from pathlib import Path

from tests.cli.shared.commands import environment, start


class Terminal:
    """A chat on a terminal of its own."""

    def __init__(self, cwd: Path, columns: int = 80, arguments: Sequence[str] = (), **variables: str) -> None:
        self._main, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        env = {name: value for name, value in environment(**variables).items() if name not in ("COLUMNS", "LINES")}
        self.process = start("chat", *arguments, cwd=cwd, env=env, is_session=True, stdin=other, stdout=other, stderr=other)
        os.close(other)
        self.seen = ""

    def read_until(self, words: str) -> str:
        """What appeared up to `words`; a test that waits for what never comes is ended by its time limit."""
        while words not in self.seen:
            try:
                data = os.read(self._main, 65_536)
            except OSError:  # the other side is closed
                data = b""
            if not data:
                raise AssertionError(f"{words!r} did not appear in {self.seen!r}")
            self.seen += data.decode(errors="replace")
        before, _, self.seen = self.seen.partition(words)
        return before

    def type(self, text: str) -> None:
        """Types a line."""
        os.write(self._main, f"{text}\n".encode())

    def finish(self) -> int:
        """The exit code, after the rest of the output was read."""
        with contextlib.suppress(OSError):
            while data := os.read(self._main, 65_536):
                self.seen += data.decode(errors="replace")
        return self.process.wait(30)

    def hang_up(self) -> None:
        """Closes the terminal, which its processes are told."""
        os.close(self._main)
        self._main = -1
        self.process.send_signal(signal.SIGHUP)

    def close(self) -> None:
        """Ends what is still running."""
        self.process.kill()
        self.process.wait()
        if self._main >= 0:
            os.close(self._main)
