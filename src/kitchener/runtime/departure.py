"""Lets all agent classes of a runtime go of a subject while they are erased, and drops what is kept of them in memory."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from kitchener.actors.erasure import Leaving
from kitchener.context.lexical.words import forget_words
from kitchener.errors import UnknownSubject
from kitchener.gateway.providers.offline.model import forget_texts
from kitchener.ids import memory_namespace


class Departure:
    """Keeps a subject out from `begin` until the block is left; beyond it where the erasure began and was cut off.

    Args:
        subject_id: who
        classes: the agent classes by name
    """

    def __init__(self, subject_id: str, classes: Mapping[str, Leaving]) -> None:
        self._subject_id = subject_id
        self._places = [(each, memory_namespace(name, subject_id)) for name, each in classes.items()]
        self.is_erasing = False
        """Whether the key may be on its way out: nothing of the subject's may be written then until that has ended."""

    async def begin(self) -> None:
        """Takes nothing of the subject from now on, and returns when nothing of theirs runs any more."""
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
        # These know texts, not whose they are.
        forget_texts()
        forget_words()
