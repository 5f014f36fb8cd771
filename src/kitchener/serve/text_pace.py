"""Decides when the streams of a server write the text that has arrived: all at common beats.

With common beats, and names of conversations in memory, a streamed turn of the server costs 1.06 to 1.10 times the turn in a
process in place of 2.07 (`benchmarks.serving`, see `docs/turn-costs.md`). This module knows neither turns nor connections.
"""

from collections.abc import Callable
from typing import Final

import anyio

_CALM: Final = 12
"""Turns at once, beyond which beats are rarer, in proportion. At the default interval, all streams together then have 400
writes a second, however many they are."""
_LONGEST_S: Final = 0.5


class TextPace:
    """Calls back at the next beat.

    Args:
        interval_s: time between two beats when few turns run, seconds; 0: nothing waits
        running: how many turns run
    """

    def __init__(self, interval_s: float, running: Callable[[], int]) -> None:
        self._interval_s, self._running = interval_s, running
        self._waiting = list[Callable[[], object]]()
        self._awaited = anyio.Event()

    def at_beat(self, call: Callable[[], object]) -> None:
        """Calls it once, at the next beat; at once if nothing waits."""
        if not self._interval_s:
            call()
            return
        if not self._waiting:
            self._awaited.set()
        self._waiting.append(call)

    async def run(self) -> None:
        """Beats while a stream waits. Runs until it is cancelled."""
        while True:
            while not self._waiting:
                self._awaited = anyio.Event()
                await self._awaited.wait()
            await anyio.sleep(self._pause_s())
            waiting, self._waiting = self._waiting, []
            for call in waiting:
                call()

    def _pause_s(self) -> float:
        wanted = self._interval_s * max(1.0, self._running() / _CALM)
        return min(wanted, max(self._interval_s, _LONGEST_S))
