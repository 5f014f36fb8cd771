"""Runs the blocking part of commit rounds in one thread, and wakes the event loop once for each.

`anyio.to_thread` runs any function in any thread; for that a call passes two rounds of the event loop, two cancel scopes and a
limiter. A commit group always runs one known function, one call at a time, and never cancels it. Knows nothing of ledgers.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from anyio.lowlevel import current_token

Job = Callable[[], None]
"""Blocks."""
WhenDone = Callable[[BaseException | None], None]
"""Called on the event loop with what the job raised; None: it did not. Raises nothing."""


class WriterThread:
    """A thread that does one job after the other. Make it in the event loop that gets the results.

    The thread begins with the first job. It does not keep the process from ending: what a job leaves half done then is what a
    killed process leaves.
    """

    def __init__(self) -> None:
        loop: Any = current_token().native_token  # asyncio's event loop, or trio's token
        self._soon: Callable[..., object] = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
        self._jobs = SimpleQueue[tuple[Job, WhenDone] | None]()
        self._is_running = False

    def run(self, job: Job, when_done: WhenDone) -> None:
        """Does a job in the thread, after those before it."""
        if not self._is_running:
            try:
                threading.Thread(target=_work, args=(self._jobs, self._soon), name="ledger writer", daemon=True).start()
            except RuntimeError as error:  # the system gives no further thread
                when_done(error)
                return
            self._is_running = True
        self._jobs.put((job, when_done))

    def stop(self) -> None:
        """Ends the thread after the jobs that it has; a further job begins another."""
        if self._is_running:
            self._is_running = False
            self._jobs.put(None)


def _work(jobs: SimpleQueue[tuple[Job, WhenDone] | None], soon: Callable[..., object]) -> None:
    while (next_job := jobs.get()) is not None:
        job, when_done = next_job
        error: BaseException | None = None
        try:
            job()
        except BaseException as raised:  # noqa: BLE001  given to the event loop
            error = raised
        with suppress(RuntimeError):  # the event loop has ended, and nobody waits any more
            soon(when_done, error)
        del next_job, job, when_done, error  # while the thread waits, nothing may keep the entries alive
