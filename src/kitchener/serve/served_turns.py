"""Runs the turns of requests in tasks of the server, so that a turn outlives its client's connection.

A turn has one reader: its client's connection, or a task of the server that keeps the updates. If the client disconnects, the
turn continues or is cancelled, as `serve.client_gone` says. This module knows nothing of HTTP. Explained in `docs/server.md`.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import groupby
from typing import Self

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from kitchener.actors.turn.context_time import CONTEXT_TIME
from kitchener.cancellation import ended_by, start_apart
from kitchener.errors import CallerError, KitchenerError, RuntimeClosed, TurnShutDown
from kitchener.logs import get_logger
from kitchener.plain_names import origin_of
from kitchener.records.turn import TextDelta, TurnCompleted, TurnResult, TurnUpdate, UpdateListener
from kitchener.schemas.compiled_schemas import CHECK_TIME
from kitchener.serve.access.allowances import RequestPlace
from kitchener.serve.metrics.server_counts import ServedEnd, ServerCounts, TurnCounts
from kitchener.serve.text_pace import TextPace

_log = get_logger(__name__)

StreamedRun = Callable[[UpdateListener], Awaitable[TurnResult | None]]
"""Runs a turn, awaits its argument with each update, and returns the result; None: there is no turn yet."""
ContinuedRun = Callable[[UpdateListener | None], Awaitable[TurnResult | None]]
"""Answers tool calls, and returns the result of the turn that continues; as the argument, None: its updates are not read."""
WholeRun = Callable[[], Awaitable[TurnResult | None]]
"""Runs a turn without updates, and returns the result; None: there is no turn yet."""


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
        counts: counts how it ends, for its agent class
        pace: when text that follows other text is handed out
        cancels: whether the turn is cancelled when its client goes away
        is_kept: whether a task of the server reads the updates, which stays when the client goes
    """

    def __init__(
        self,
        session_id: str,
        capacity: int,
        counts: TurnCounts,
        pace: TextPace,
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
        self._news, self._room = anyio.Event(), anyio.Event()
        self._pace, self._may_send, self._is_hurried = pace, False, False
        """Whether the reader gets what there is: since a beat or the first text, or because nothing more fits or comes."""

    def __aiter__(self) -> Self:
        """The updates, in batches: those that have come since the last batch, oldest first."""
        return self

    async def __anext__(self) -> list[TurnUpdate]:
        """The next batch; at the end raises the error of the turn, if it has one.

        Every batch is a write to the client. So text waits for the next beat, but for the first and the last, and what comes
        before the first text waits for it, or for a beat.
        """
        await self._wait_batch()
        if not self._updates:
            await self.result()
            raise StopAsyncIteration
        batch, self._updates = self._updates, []
        self._room.set()
        if any(isinstance(each, TextDelta) for each in batch):
            self._may_send = False
            self._pace.at_beat(self._hand_out)
        return batch

    async def wait_begun(self) -> bool:
        """Returns when there is a batch; False: there is no turn yet. Raises the error of a turn that ended without one."""
        await self._wait_batch()
        return bool(self._updates) or await self.result() is not None

    async def _wait_batch(self) -> None:
        while not (self._updates and (self._may_send or self._is_hurried)) and not self.done.is_set():
            self._news = anyio.Event()
            await self._news.wait()

    def _hand_out(self) -> None:
        self._may_send = True
        if self._updates:
            self._news.set()

    def _hurry(self) -> None:
        self._is_hurried = True
        self._news.set()

    def stop(self, why: KitchenerError) -> None:
        """Cancels the turn, which is aborted on record; its reader gets `why`."""
        self._why = why
        self._scope.cancel()

    @property
    def is_stopped(self) -> bool:
        """Whether it was cancelled before it had a result."""
        return self.done.is_set() and self._error is None and not self._results

    def leave(self) -> None:
        """Notes that the client has disconnected."""
        self._has_client = False
        if not self._is_kept:
            self.stop_reading()
        if self._cancels:
            self._scope.cancel()

    def stop_reading(self) -> None:
        """Notes that updates are no longer read; the turn then no longer waits for room."""
        self._has_reader = False
        self._room.set()

    async def result(self) -> TurnResult | None:
        """The result, when the turn has ended; None: an answer about a tool after which others are still missing.

        Raises:
            KitchenerError: as `HO2Supervisor.handle_turn`, or why the turn was stopped
        """
        if not self.done.is_set():
            await self.done.wait()
        if self._error is not None:
            raise self._error
        if not self._results:
            raise self._why
        return self._results[0]

    async def run_streamed(self, begin: StreamedRun) -> None:
        """Runs the turn, and hands its updates to the reader while there is one."""
        self._pace.at_beat(self._hand_out)
        result = await begin(self._tell)
        self._results.append(result)
        if result is not None:
            await self._tell(TurnCompleted(result))
        self._hurry()

    async def _tell(self, update: TurnUpdate) -> None:
        if isinstance(update, TextDelta) and not self._has_text:
            self._has_text = self._may_send = True
            self._counts.first_text_s.add(anyio.current_time() - self._began)
        while len(self._updates) >= self._capacity and self._has_reader:
            self._hurry()
            self._room = anyio.Event()
            await self._room.wait()
            self._is_hurried = False
        if self._has_reader:
            self._updates.append(update)
            if self._may_send:
                self._news.set()

    async def run_whole(self, begin: WholeRun) -> None:
        """Runs the turn without updates."""
        self._results.append(await begin())

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Runs the turn to its end, and keeps its outcome."""
        try:
            with ended_by(self._scope):
                await work()
        except KitchenerError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001  a bug in one turn must not end the server; the log and the reader get it
            _log.error("turn failed", session_id=self.session_id, error=origin_of(error))
            self._error = error
        finally:
            self._count()
            self.done.set()
            self._hurry()
            if not self._has_client and self._error is not None:
                error_class = type(self._error).__name__
                _log.warning("turn failed after its client had gone", session_id=self.session_id, error=error_class)

    def _count(self) -> None:
        if isinstance(self._error, CallerError):
            return  # the request was refused for its content: there is no turn, and nothing for an operator to do
        self._counts.turn_s.add(anyio.current_time() - self._began)
        result = self._results[0] if self._results else None
        end: ServedEnd = "failed" if self._error is not None else "completed" if self._results else "stopped"
        self._counts.ends["degraded" if result is not None and result.degraded else end] += 1


class ServedTurns:
    """The turns that run for requests now.

    Args:
        tasks: runs the turns
        capacity: updates that wait for a slow reader
        text_interval_s: how long text waits for text that follows, seconds
        cancels: whether a turn is cancelled when its client goes away
        counts: counts the turns
    """

    def __init__(self, tasks: TaskGroup, capacity: int, text_interval_s: float, *, cancels: bool, counts: ServerCounts) -> None:
        self._tasks, self._capacity, self._cancels = tasks, capacity, cancels
        self.counts = counts
        """Counts of the turns so far; the server counts its answers in it, too."""
        self._running: dict[str, list[ServedTurn]] = {}
        self._pace = TextPace(text_interval_s, self._running.__len__)

    async def run(self) -> None:
        """Hands out text at its beats until it is cancelled."""
        await self._pace.run()

    def __len__(self) -> int:
        return sum(map(len, self._running.values()))

    def begin(self, place: RequestPlace, agent_class: str, session_id: str, begin: StreamedRun) -> ServedTurn:
        """Begins a turn whose updates somebody reads. It keeps the place of its request."""
        turn = self._turn(agent_class, session_id)
        return self._start(place, turn, lambda: turn.run_streamed(begin))

    def begin_whole(self, place: RequestPlace, agent_class: str, session_id: str, begin: WholeRun) -> ServedTurn:
        """Begins a turn whose updates are not wanted, only its result. It keeps the place of its request."""
        turn = self._turn(agent_class, session_id)
        return self._start(place, turn, lambda: turn.run_whole(begin))

    def begin_kept(
        self,
        place: RequestPlace,
        agent_class: str,
        session_id: str,
        begin: StreamedRun,
        read: Callable[[ServedTurn], Awaitable[None]],
    ) -> ServedTurn:
        """Begins a turn whose updates a task of the server reads to the end, whether or not the client stays.

        Args:
            place: of its request; the turn keeps it
            agent_class: whose turn it is
            session_id: its session
            begin: runs the turn
            read: takes the batches of the turn it is given, and raises nothing
        """
        turn, was_read = self._turn(agent_class, session_id, is_kept=True), anyio.Event()

        async def read_all() -> None:
            try:
                await read(turn)
            finally:
                turn.stop_reading()
                was_read.set()

        async def work() -> None:
            await turn.run_streamed(begin)

        start_apart(self._tasks, read_all, "updates of a turn")
        return self._start(place, turn, work, was_read.wait)

    def _turn(self, agent_class: str, session_id: str, *, is_kept: bool = False) -> ServedTurn:
        counts = self.counts.turns[agent_class]
        return ServedTurn(session_id, self._capacity, counts, self._pace, cancels=self._cancels, is_kept=is_kept)

    def of_session(self, session_id: str) -> list[ServedTurn]:
        """The turns of a session that run or wait for it, oldest first."""
        return list(self._running.get(session_id, ()))

    def stop_all(self, *, can_record: bool = True) -> None:
        """Cancels every turn, because the server shuts down. `can_record` is whether that is put on record."""
        told = "it is recorded as aborted" if can_record else "its ledgers take no more entries"
        for turns in list(self._running.values()):
            for each in turns:
                each.stop(TurnShutDown(f"the server shut down before the turn had a reply; {told}"))

    async def wait_idle(self) -> None:
        """Returns when no turn runs."""
        while self._running:
            turns = next(iter(self._running.values()))
            await turns[0].done.wait()
            await anyio.lowlevel.checkpoint()

    def _start(
        self,
        place: RequestPlace,
        turn: ServedTurn,
        work: Callable[[], Awaitable[None]],
        wait_read: Callable[[], Awaitable[object]] | None = None,
    ) -> ServedTurn:
        place.begin_turn()
        self._running.setdefault(turn.session_id, []).append(turn)

        async def run() -> None:
            CHECK_TIME.set(place.book_check)  # of this task, and of all that works for it
            CONTEXT_TIME.set(place.book_context)
            try:
                await turn.run(work)
                if wait_read is not None:
                    await wait_read()
            finally:
                place.end_turn()
                turns = self._running[turn.session_id]
                turns.remove(turn)
                if not turns:
                    del self._running[turn.session_id]

        start_apart(self._tasks, run, "turn of a request")
        return turn
