"""Stops all work for a subject in every agent class of a runtime during an erasure, and clears the subject's cached data."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from kitchener.actors.erasure import ErasureGuard
from kitchener.context.lexical.words import forget_words
from kitchener.errors import UnknownSubject
from kitchener.ids import memory_namespace


class Departure:
    """Refuses calls for a subject from `begin` until the block ends, and longer if the erasure started but did not complete.

    Args:
        subject_id: the subject to erase
        classes: the erasure guard of each agent class, by name
    """

    def __init__(self, subject_id: str, classes: Mapping[str, ErasureGuard]) -> None:
        self._subject_id = subject_id
        self._places = [(each, memory_namespace(name, subject_id)) for name, each in classes.items()]
        self.is_erasing = False
        """Whether the erasure has started; the key may then be destroyed, and calls stay refused until it completes."""

    async def begin(self) -> None:
        """Refuses new calls for the subject, and returns when no turn of the subject runs."""
        for each, namespace in self._places:
            await each.begin(self._subject_id, namespace)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        has_ended = kind is None or not self.is_erasing or issubclass(kind, UnknownSubject)
        for each, namespace in self._places:
            each.forget(self._subject_id)
            if has_ended:
                each.end(self._subject_id, namespace)
        # This cache does not record whose words it holds, so it is cleared completely.
        forget_words()
