"""Runs the turns of requests in tasks of the server, so that a turn does not depend on its client's connection.

A turn has one reader: its client's connection, or a task of the server that keeps what it reads. If the client goes, the turn
goes on or is cancelled, as `serve.client_gone` says. This module knows nothing of HTTP. Explained in `docs/server.md`.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import groupby
from typing import Final, Self

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from kitchener.errors import KitchenerError, RuntimeClosed
from kitchener.logs import get_logger
from kitchener.plain_names import origin_of
from kitchener.records.turn import TextDelta, TurnCompleted, TurnResult, TurnUpdate, UpdateListener
from kitchener.serve.metrics.server_counts import ServedEnd, ServerCounts

_log = get_logger(__name__)

Listened = Callable[[UpdateListener], Awaitable[TurnResult | None]]
"""Runs a turn that awaits its argument with each update, and gives its result; None: there is no turn yet."""
Going = Callable[[UpdateListener | None], Awaitable[TurnResult | None]]
"""The same for an answer about tool calls; the turn that goes on need not be told."""
Whole = Callable[[], Awaitable[TurnResult | None]]
"""Runs a turn, and gives its result; None: there is no turn yet."""

_CALM: Final = 24
"""Turns at once, beyond which the text of each waits longer, in proportion. Writes are what a stream costs most, about 100 µs
each: at the default interval, all streams together have 800 writes a second."""
_LONGEST_PAUSE_S: Final = 0.5


def joined_text(batch: Sequence[TurnUpdate]) -> Iterator[TurnUpdate]:
    """The updates of a batch, with text that came in a row as one."""
    for of, found in groupby(batch, lambda each: (each.wo_id, each.attempt) if isinstance(each, TextDelta) else None):
        if of is None:
            yield from found
        else:
            yield TextDelta(*of, "".join([each.text for each in found if isinstance(each, TextDelta)]))


class ServedTurn:
    """A turn of a request, and its updates for one reader. Made by `ServedTurns`.

    Args:
        session_id: its session
        capacity: updates that wait for a slow reader, beyond which the turn waits
        counts: counts how it ends
        pause_s: how long text waits for text that follows, seconds; asked each time
        cancels: whether the turn is cancelled when its client goes away
        is_kept: whether a task of the server reads the updates, which stays when the client goes
    """

    def __init__(
        self,
        session_id: str,
        capacity: int,
        counts: ServerCounts,
        pause_s: Callable[[], float],
        *,
        cancels: bool,
        is_kept: bool = False,
    ) -> None:
        self.session_id = session_id
        self.done = anyio.Event()
        """Set when the turn has ended, in whatever way."""
        self._error: Exception | None = None
        self._results: list[TurnResult | None] = []
        self._scope, self._cancels, self._counts = anyio.CancelScope(), cancels, counts
        self._began, self._has_text = anyio.current_time(), False
        self._has_client, self._has_reader, self._is_kept = True, True, is_kept
        self._why: KitchenerError = RuntimeClosed(f"the turn of session {session_id} was stopped before it had a reply")
        self._updates, self._capacity = list[TurnUpdate](), capacity
        self._news, self._room, self._hurry = anyio.Event(), anyio.Event(), anyio.Event()
        self._pause_s, self._text_taken = pause_s, float("-inf")

    def __aiter__(self) -> Self:
        """The updates, in batches: those that have come since the last batch, oldest first."""
        return self

    async def __anext__(self) -> list[TurnUpdate]:
        """The next batch; at the end raises the error of the turn, if it has one.

        Text waits a moment for more of it, but for the first, and for the last: every batch is a write to the client.
        """
        await self._wait_news()
        if not self._updates:
            await self.result()
            raise StopAsyncIteration
        pause = self._text_taken + self._pause_s() - anyio.current_time()
        if pause > 0 and not self._hurry.is_set():
            with anyio.move_on_after(pause):
                await self._hurry.wait()
        batch, self._updates = self._updates, []
        self._room.set()
        if any(isinstance(each, TextDelta) for each in batch):
            self._text_taken = anyio.current_time()
        return batch

    async def wait_begun(self) -> bool:
        """Returns when there is an update; False: there is no turn yet. Raises the error of a turn that ended without one."""
        await self._wait_news()
        return bool(self._updates) or await self.result() is not None

    async def _wait_news(self) -> None:
        while not self._updates and not self.done.is_set():
            self._news = anyio.Event()
            await self._news.wait()

    def stop(self, why: KitchenerError) -> None:
        """Cancels the turn, which is aborted on record; its reader gets `why`."""
        self._why = why
        self._scope.cancel()

    @property
    def is_stopped(self) -> bool:
        """Whether it was cancelled before it had a result."""
        return self.done.is_set() and self._error is None and not self._results

    def leave(self) -> None:
        """Says that the client has gone."""
        self._has_client = False
        if not self._is_kept:
            self.stop_reading()
        if self._cancels:
            self._scope.cancel()

    def stop_reading(self) -> None:
        """Says that nobody takes updates any more; the turn does not wait for room then."""
        self._has_reader = False
        self._room.set()

    async def result(self) -> TurnResult | None:
        """The result, when the turn has ended; None: an answer about a tool after which others are still missing.

        Raises:
            KitchenerError: as `HO2Supervisor.handle_turn`, or why the turn was stopped
        """
        await self.done.wait()
        if self._error is not None:
            raise self._error
        if not self._results:
            raise self._why
        return self._results[0]

    async def run_listened(self, begin: Listened) -> None:
        """Runs the turn, and hands its updates to the reader while there is one."""
        result = await begin(self._tell)
        self._results.append(result)
        if result is not None:
            await self._tell(TurnCompleted(result))
        self._hurry.set()

    async def _tell(self, update: TurnUpdate) -> None:
        if isinstance(update, TextDelta) and not self._has_text:
            self._has_text = True
            self._counts.first_text_s.add(anyio.current_time() - self._began)
        while len(self._updates) >= self._capacity and self._has_reader:
            self._hurry.set()
            self._room = anyio.Event()
            await self._room.wait()
            self._hurry = anyio.Event()
        if self._has_reader:
            self._updates.append(update)
            self._news.set()

    async def run_whole(self, begin: Whole) -> None:
        """Runs the turn without updates."""
        self._results.append(await begin())

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Runs the turn to its end, and keeps what came of it."""
        try:
            with self._scope:
                await work()
        except KitchenerError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001  a bug in one turn must not end the server; the log and the reader get it
            _log.error("turn failed", session_id=self.session_id, error=origin_of(error))
            self._error = error
        finally:
            self._count()
            self.done.set()
            self._news.set()
            self._hurry.set()
            if not self._has_client and self._error is not None:
                error_class = type(self._error).__name__
                _log.warning("turn failed after its client had gone", session_id=self.session_id, error=error_class)

    def _count(self) -> None:
        self._counts.turn_s.add(anyio.current_time() - self._began)
        result = self._results[0] if self._results else None
        end: ServedEnd = "failed" if self._error is not None else "completed" if self._results else "stopped"
        self._counts.turns["degraded" if result is not None and result.degraded else end] += 1


class ServedTurns:
    """The turns that run for requests now.

    Args:
        tasks: runs the turns
        capacity: updates that wait for a slow reader
        text_interval_s: how long text waits for text that follows, seconds
        cancels: whether a turn is cancelled when its client goes away
    """

    def __init__(self, tasks: TaskGroup, capacity: int, text_interval_s: float, *, cancels: bool) -> None:
        self._tasks, self._capacity, self._cancels = tasks, capacity, cancels
        self._text_interval_s = text_interval_s
        self.counts = ServerCounts()
        """What came of the turns so far; the server counts its answers in it, too."""
        self._running: dict[str, list[ServedTurn]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._running.values()))

    def begin(self, session_id: str, begin: Listened) -> ServedTurn:
        """Begins a turn whose updates somebody reads."""
        turn = self._turn(session_id)
        return self._start(turn, lambda: turn.run_listened(begin))

    def begin_whole(self, session_id: str, begin: Whole) -> ServedTurn:
        """Begins a turn of which only the result is wanted."""
        turn = self._turn(session_id)
        return self._start(turn, lambda: turn.run_whole(begin))

    def begin_kept(self, session_id: str, begin: Listened, read: Callable[[ServedTurn], Awaitable[None]]) -> ServedTurn:
        """Begins a turn whose updates a task of the server reads to the end, whether or not the client stays.

        Args:
            session_id: its session
            begin: runs the turn
            read: takes the batches of the turn it is given, and raises nothing
        """
        turn, was_read = self._turn(session_id, is_kept=True), anyio.Event()

        async def read_all() -> None:
            try:
                await read(turn)
            finally:
                turn.stop_reading()
                was_read.set()

        async def work() -> None:
            await turn.run_listened(begin)

        self._tasks.start_soon(read_all)
        return self._start(turn, work, was_read.wait)

    def _turn(self, session_id: str, *, is_kept: bool = False) -> ServedTurn:
        return ServedTurn(session_id, self._capacity, self.counts, self._pause_s, cancels=self._cancels, is_kept=is_kept)

    def _pause_s(self) -> float:
        wanted = self._text_interval_s * max(1.0, len(self._running) / _CALM)
        return min(wanted, max(self._text_interval_s, _LONGEST_PAUSE_S))

    def of_session(self, session_id: str) -> list[ServedTurn]:
        """The turns of a session that run or wait for it, oldest first."""
        return list(self._running.get(session_id, ()))

    def stop_all(self) -> None:
        """Cancels every turn, because the server shuts down."""
        for turns in list(self._running.values()):
            for each in turns:
                each.stop(RuntimeClosed("the server shut down before the turn had a reply; it is aborted on record"))

    async def wait_idle(self) -> None:
        """Returns when no turn runs."""
        while self._running:
            turns = next(iter(self._running.values()))
            await turns[0].done.wait()
            await anyio.lowlevel.checkpoint()

    def _start(
        self, turn: ServedTurn, work: Callable[[], Awaitable[None]], wait_read: Callable[[], Awaitable[object]] | None = None
    ) -> ServedTurn:
        self._running.setdefault(turn.session_id, []).append(turn)

        async def run() -> None:
            try:
                await turn.run(work)
                if wait_read is not None:
                    await wait_read()
            finally:
                turns = self._running[turn.session_id]
                turns.remove(turn)
                if not turns:
                    del self._running[turn.session_id]

        self._tasks.start_soon(run)
        return turn
