"""Answers short blocking questions of many tasks in few calls of a worker thread.

While the event loop is busy, each call waits for the interpreter lock. If many conversations begin at once, their look-ups and
reads would wait for one another, so the waiting ones share a call. This module does not know what the questions ask.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Generic, TypeVar, cast

import anyio

from kitchener.lanes.thread_calls import to_end_in_thread

T = TypeVar("T")
_MOST: Final = 64
"""Most questions that one call answers. Between two calls, reads of other kinds can use the thread."""


class _WaitingRead(Generic[T]):
    """A question, and its answer once there is one."""

    __slots__ = ("answers", "error", "question", "woken")

    def __init__(self, question: Callable[[], T]) -> None:
        self.question = question
        self.answers = list[T]()
        self.error: Exception | None = None
        self.woken = anyio.Event()
        """Set when the question is answered, or when its task has to make the next call."""

    @property
    def is_open(self) -> bool:
        return not self.answers and self.error is None

    def answer(self) -> None:
        """Answers the question; runs in the worker thread."""
        try:
            self.answers.append(self.question())
        except Exception as error:  # noqa: BLE001  raised again in the task that asks; the other questions are answered
            self.error = error


class BatchedQuestions:
    """The questions that wait for the worker thread.

    Args:
        limiter: lets one call run at a time
    """

    def __init__(self, limiter: anyio.CapacityLimiter) -> None:
        self._limiter = limiter
        self._waiting = deque[_WaitingRead[object]]()
        self._is_calling = False

    async def ask(self, question: Callable[[], T]) -> T:
        """What the question returns or raises, from a worker thread.

        Cancelled before the call begins, the question is not asked; after that, its answer is dropped.
        """
        asked = _WaitingRead(question)
        waits = cast("_WaitingRead[object]", asked)
        self._waiting.append(waits)
        try:
            while asked.is_open:
                if self._is_calling:
                    if asked.woken.is_set():  # woken to make the next call, but another task has begun it meanwhile
                        asked.woken = anyio.Event()
                    await asked.woken.wait()
                else:
                    await self._call()
        finally:
            with suppress(ValueError):  # a call has taken it
                self._waiting.remove(waits)
                self._wake_next()
        if asked.error is not None:
            raise asked.error
        return asked.answers[0]

    async def _call(self) -> None:
        """Answers the questions that wait when the thread begins. Wakes their tasks, and the task that makes the next call."""
        taken = list[_WaitingRead[object]]()
        self._is_calling = True
        try:
            await to_end_in_thread(partial(self._answer, taken), limiter=self._limiter)
        finally:
            self._is_calling = False
            for each in taken:
                each.woken.set()
            self._wake_next()

    def _answer(self, taken: list[_WaitingRead[object]]) -> None:
        # A cancelled task removes its question at any moment, so only a failed `popleft` shows that no question is left.
        with suppress(IndexError):
            while len(taken) < _MOST:
                taken.append(self._waiting.popleft())
                taken[-1].answer()

    def _wake_next(self) -> None:
        if self._waiting and not self._is_calling:
            self._waiting[0].woken.set()
