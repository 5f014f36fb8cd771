"""Runs the turns of requests in tasks of the server, so that a turn does not depend on its client's connection.

A turn has one reader. If the reader goes, the turn goes on or is cancelled, as `serve.client_gone` says. This module knows
nothing of HTTP. Explained in `docs/server.md`.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Self

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from kitchener.errors import KitchenerError, RuntimeClosed
from kitchener.logs import get_logger
from kitchener.records.turn import TextDelta, TurnCompleted, TurnResult, TurnUpdate, UpdateListener
from kitchener.serve.metrics.server_counts import ServedEnd, ServerCounts

_log = get_logger(__name__)

Updates = Callable[[], AsyncGenerator[TurnUpdate, None]]
"""Starts a turn, and gives its updates; the last one is `TurnCompleted`."""
Whole = Callable[[], Awaitable[TurnResult | None]]
"""Runs a turn, and gives its result; None: there is no turn yet."""
Told = Callable[[UpdateListener], Awaitable[TurnResult | None]]
"""Runs a turn, and gives its updates to the listener and then its result; None: there is no turn yet."""


class ServedTurn:
    """A turn of a request, and its updates for one reader. Made by `ServedTurns`.

    Args:
        session_id: its session
        capacity: updates that wait for a slow reader, beyond which the turn waits; None: nobody reads updates
        counts: counts how it ends
        cancels: whether the turn is cancelled when its reader goes away
    """

    def __init__(self, session_id: str, capacity: int | None, counts: ServerCounts, *, cancels: bool) -> None:
        self.session_id = session_id
        self.done = anyio.Event()
        """Set when the turn has ended, in whatever way."""
        self._error: Exception | None = None
        self._results: list[TurnResult | None] = []
        self._scope, self._cancels, self._counts = anyio.CancelScope(), cancels, counts
        self._began, self._has_text = anyio.current_time(), False
        self._has_reader = True
        self._why: KitchenerError = RuntimeClosed(f"the turn of session {session_id} was stopped before it had a reply")
        self._stream = anyio.create_memory_object_stream[TurnUpdate](capacity) if capacity is not None else None

    def __aiter__(self) -> Self:
        """The updates, as they happen."""
        return self

    async def __anext__(self) -> TurnUpdate:
        """The next update; at the end raises the error of the turn, if it has one."""
        assert self._stream is not None
        try:
            return await self._stream[1].receive()
        except anyio.EndOfStream:
            self._stream[1].close()
            await self.result()
            raise StopAsyncIteration from None

    def stop(self, why: KitchenerError) -> None:
        """Cancels the turn, which is aborted on record; its reader gets `why`."""
        self._why = why
        self._scope.cancel()

    def leave(self) -> None:
        """Says that the reader has gone."""
        self._has_reader = False
        if self._stream is not None:
            self._stream[1].close()
        if self._cancels:
            self._scope.cancel()

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

    async def run_updates(self, begin: Updates) -> None:
        """Runs the turn, and hands its updates to the reader while there is one."""
        async with aclosing(begin()) as updates:
            async for update in updates:
                if isinstance(update, TurnCompleted):
                    self._results.append(update.result)
                await self._tell(update)

    async def run_told(self, begin: Told) -> None:
        """Runs the turn, whose updates come by a listener."""
        self._results.append(await begin(self._tell))

    async def _tell(self, update: TurnUpdate) -> None:
        assert self._stream is not None
        if isinstance(update, TextDelta) and not self._has_text:
            self._has_text = True
            self._counts.first_text_s.add(anyio.current_time() - self._began)
        if self._has_reader:
            with suppress(anyio.BrokenResourceError):  # the reader went meanwhile, see `leave`
                await self._stream[0].send(update)

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
            _log.error("turn failed", session_id=self.session_id, exc_info=error)
            self._error = error
        finally:
            if self._stream is not None:
                self._stream[0].close()
            self._count()
            self.done.set()
            if not self._has_reader and self._error is not None:
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
        cancels: whether a turn is cancelled when its client goes away
    """

    def __init__(self, tasks: TaskGroup, capacity: int, *, cancels: bool) -> None:
        self._tasks, self._capacity, self._cancels = tasks, capacity, cancels
        self.counts = ServerCounts()
        """What came of the turns so far; the server counts its answers in it, too."""
        self._running: dict[str, list[ServedTurn]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._running.values()))

    def begin(self, session_id: str, begin: Updates) -> ServedTurn:
        """Begins a turn whose updates somebody reads."""
        turn = ServedTurn(session_id, self._capacity, self.counts, cancels=self._cancels)
        return self._start(turn, lambda: turn.run_updates(begin))

    def begin_told(self, session_id: str, begin: Told) -> ServedTurn:
        """Begins a turn whose updates come by a listener, and are read."""
        turn = ServedTurn(session_id, self._capacity, self.counts, cancels=self._cancels)
        return self._start(turn, lambda: turn.run_told(begin))

    def begin_whole(self, session_id: str, begin: Whole) -> ServedTurn:
        """Begins a turn of which only the result is wanted."""
        turn = ServedTurn(session_id, None, self.counts, cancels=self._cancels)
        return self._start(turn, lambda: turn.run_whole(begin))

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

    def _start(self, turn: ServedTurn, work: Callable[[], Awaitable[None]]) -> ServedTurn:
        self._running.setdefault(turn.session_id, []).append(turn)

        async def run() -> None:
            try:
                await turn.run(work)
            finally:
                turns = self._running[turn.session_id]
                turns.remove(turn)
                if not turns:
                    del self._running[turn.session_id]

        self._tasks.start_soon(run)
        return turn
