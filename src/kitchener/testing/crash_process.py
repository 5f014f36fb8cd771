"""One life of a process: a forked child that runs an event loop of its own, and what it says on a pipe."""

import json
import os
import select
import signal
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import anyio

from kitchener.testing.kill_places import KillPlaces

DEADLINE_S: Final = 60.0
"""For one life: a process that hangs is a failure, not a wait."""

_ENDING: Final = (signal.SIGINT, signal.SIGTERM)

Tell = Callable[[str], None]
"""Says a line to the process that watches."""
Life = Callable[[Tell, KillPlaces], Awaitable[None]]


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Delivers the signals that end a program only afterwards.

    Python runs functions of its own around a fork, and drops what a signal's handler raises in one of them. Then the program
    would continue.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class CrashProcess:
    """A forked child that runs one life in an event loop of its own. The parent has one thread and no event loop.

    A life that raises says `failed` and the traceback as JSON; one that takes too long is ended and said `hangs`.

    Args:
        life: what it does
        backend: the event loop library, `asyncio` or `trio`
        at: the place where it kills itself, from 1; None: none
        deadline_s: how long it may take, seconds
    """

    def __init__(self, life: Life, backend: str, at: int | None = None, deadline_s: float = DEADLINE_S) -> None:
        reader, writer = os.pipe()
        self.lines: list[str] = []
        self._rest, self._pipe, self._ends = b"", reader, time.monotonic() + deadline_s
        with signals_deferred():
            self.pid = os.fork()
            if self.pid == 0:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
                os.close(reader)
                os._exit(_run(life, backend, KillPlaces(at), writer))
            os.close(writer)

    def read(self, seconds: float) -> bool:
        """Reads what it says for so long; False once it is gone."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([self._pipe], [], [], left)[0]:
                data = os.read(self._pipe, 65_536)
                if not data:
                    return False
                *lines, self._rest = (self._rest + data).split(b"\n")
                self.lines += [line.decode() for line in lines]
        return True

    def kill(self) -> None:
        """Ends it without warning."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """How it ended: its exit code, or minus the signal. One that takes too long is ended."""
        while self.read(1.0):
            if time.monotonic() > self._ends:
                self.lines.append("hangs")
                self.kill()
                self._ends = float("inf")
        os.close(self._pipe)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _run(life: Life, backend: str, places: KillPlaces, writer: int) -> int:
    def tell(line: str) -> None:
        os.write(writer, f"{line}\n".encode())

    places.watch()
    try:
        anyio.run(life, tell, places, backend=backend)
    except BaseException:  # noqa: BLE001  the other process hears of it
        tell(f"failed {json.dumps(traceback.format_exc()[-4000:])}")
        return 1
    return 0
