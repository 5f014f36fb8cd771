"""Lets all agent classes of a runtime go of a subject while they are erased, and drops what is kept of them in memory."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager

from kitchener.actors.leaving import Leaving
from kitchener.context.lexical_words import terms_of
from kitchener.gateway.providers.offline import forget_texts
from kitchener.ids import memory_namespace


@contextmanager
def leaving(subject_id: str, classes: Mapping[str, Leaving]) -> Iterator[Callable[[], Awaitable[None]]]:
    """Keeps a subject out until the block is left; the call it gives returns when nothing of theirs runs any more.

    Args:
        subject_id: who
        classes: the agent classes by name
    """
    places = [(each, memory_namespace(name, subject_id)) for name, each in classes.items()]

    async def begin() -> None:
        for each, namespace in places:
            await each.begin(subject_id, namespace)

    try:
        yield begin
    finally:
        for each, namespace in places:
            each.forget(subject_id)
            each.end(subject_id, namespace)
        # These know texts, not whose they are.
        forget_texts()
        terms_of.cache_clear()
