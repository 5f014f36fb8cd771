"""Reads lines from a terminal or a pipe in a thread of its own.

The thread is not one of anyio's worker threads: a program waits for those when it ends, and this one may be in a read that
never returns. For the same reason it reads a pipe without Python's buffered `stdin`, whose lock the interpreter needs at exit.
"""

import contextlib
import os
import queue
import sys
import threading
from collections.abc import Iterator

import anyio
import anyio.from_thread
import anyio.lowlevel

from kitchener.cli.terminal.output import styled_prompt
from kitchener.errors import CallerError

try:
    import readline  # noqa: F401  loading it gives `input` its line editing and history
    import termios
except ImportError:  # not on every system
    _HAS_TERMINAL = False
else:
    _HAS_TERMINAL = True

_CHUNK = 65_536


class TypedLines:
    """Reads lines one by one, each on request.

    Args:
        prompt: shown before each line; None: input comes through a pipe, and nothing is shown
    """

    def __init__(self, prompt: str | None) -> None:
        self._wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._send, self._receive = anyio.create_memory_object_stream[str | Exception | None](1)
        self._read = _from_pipe() if prompt is None else _from_terminal(prompt)
        self._token: anyio.lowlevel.EventLoopToken | None = None

    async def next(self) -> str | None:
        """The next line without its end, or None at the end of the input.

        Raises:
            CallerError: the line is not UTF-8 text
        """
        if self._token is None:
            self._token = anyio.lowlevel.current_token()
            threading.Thread(target=self._serve, name="typed lines", daemon=True).start()
        self._wanted.put(True)
        line = await self._receive.receive()
        if isinstance(line, Exception):
            raise line
        return line

    def close(self) -> None:
        """Ends the thread, unless it waits in a read. Request no more lines."""
        self._wanted.put(False)
        self._send.close()
        self._receive.close()

    def _serve(self) -> None:
        while self._wanted.get():
            line: str | Exception | None
            try:
                line = next(self._read, None)
            except UnicodeDecodeError as error:
                line = CallerError(f"the input is not UTF-8 text: {error}")
            except OSError as error:
                line = CallerError(f"the input cannot be read: {error.strerror or error}")
            # The reader and its event loop may have ended.
            with contextlib.suppress(RuntimeError, anyio.ClosedResourceError, anyio.BrokenResourceError):
                anyio.from_thread.run_sync(self._send.send_nowait, line, token=self._token)


def _from_terminal(prompt: str) -> Iterator[str]:
    while True:
        try:
            yield input(styled_prompt(prompt, "user") if _HAS_TERMINAL else prompt)
        except EOFError:
            return


def _from_pipe() -> Iterator[str]:
    descriptor, rest = sys.stdin.fileno(), b""
    while chunk := os.read(descriptor, _CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode()
    if rest:
        yield rest.removesuffix(b"\r").decode()


@contextlib.contextmanager
def terminal_kept() -> Iterator[None]:
    """Restores the terminal's state after the block, even if a line was being edited."""
    if not _HAS_TERMINAL or not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal is closed
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
