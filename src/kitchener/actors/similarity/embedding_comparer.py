"""Computes how similar earlier turns are to a message, with vectors from an `EmbeddingProvider`.

Only texts without a vector are embedded: in most turns the message and the last reply. A turn waits for vectors until a
separate deadline; a text that has no vector then is ranked by its words. A provider that fails is not asked again for a while.
`vectors.py` compares vectors, `vector_store.py` keeps them, and `ranking.py` joins the scores with those by words. Explained in
`docs/context.md`.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final
from weakref import ref

import anyio
import anyio.to_thread

from kitchener.actors.authority.ranking import TurnWords
from kitchener.actors.similarity.vector_store import VectorStore
from kitchener.actors.similarity.vectors import FewVectors, Vector, Vectors, unit_vector
from kitchener.cancellation import ended_by, failed_alone
from kitchener.config import EmbeddingsConfig
from kitchener.logs import get_logger
from kitchener.plain_names import origin_of
from kitchener.records.embedding import EmbeddingProvider, Similarity
from kitchener.records.entries import EmbeddingProblem
from kitchener.sealing import Sealer

_log = get_logger(__name__)


SCORED: Final = 64
"""Most similar texts that gain anything: more than fit a budget, and few, because each projection records their scores."""
_FIRST: Final = 3
"""Number of texts that are embedded first: the message, the last message and the last reply."""
_READ_AT_ONCE: Final = 500
"""Stored vectors that are read in one query."""


class _Held:
    """The vectors of one history in memory, by the numbers of its items."""

    __slots__ = ("counted", "read_to", "vectors", "words")

    def __init__(self, words: "ref[TurnWords]", vectors: Vectors) -> None:
        self.words, self.vectors = words, vectors
        self.read_to: int | None = None
        """All items up to this number were looked up; None: not all of them."""
        self.counted = 0
        """Number of its vectors, as counted last."""


class _VectorSearch:
    """The search for the vectors of one message and of the items of its history."""

    __slots__ = ("found", "made", "message", "problem")

    def __init__(self, message: str) -> None:
        self.message = message
        self.found = dict[str, Vector]()
        self.made = dict[str, Vector]()
        """The vectors in `found` that are not stored yet."""
        self.problem: EmbeddingProblem | None = None


class EmbeddingComparer:
    """Compares messages with earlier turns, for all agent classes of a runtime.

    Args:
        provider: gives vectors
        config: weight, limits and deadline
        directory: the directory of the indexes, where vectors are stored
        sealer: seals stored vectors; None: they are stored in plain form
    """

    def __init__(self, provider: EmbeddingProvider, config: EmbeddingsConfig, directory: Path, sealer: Sealer | None) -> None:
        self._provider, self._config = provider, config
        self._store = VectorStore(directory, sealer, config.max_stored)
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._total = 0
        """Number of vectors in `_held`."""
        self._vectors = _kind_of_vectors()
        self._batch, self._paused_until, self._has_failed = config.batch, 0.0, False

    async def compare(self, subject_id: str, message: str, words: TurnWords, among: int) -> Similarity | None:
        """Implements `TurnComparer`. Never fails: the result says which vectors are missing, and why."""
        if not among:
            return None
        held = self._history(words)
        search = _VectorSearch(self._cut(message))
        wanted = {n: self._cut(words.said(n)) for n in held.vectors.unknown(among)}
        await self._search(subject_id, search, wanted, held.read_to)
        if search.problem is None or held.read_to is not None:
            held.read_to = among
        scores = self._scores(search, held.vectors, wanted, among)
        self._count(held)
        named = {words.turns[n].ref.entry_id: score for n, score in sorted(scores.items())}
        without = max(0, among - held.vectors.capacity) + sum([text not in search.found for text in wanted.values()])
        return Similarity(self._provider.model_id, self._config.weight, named, without, search.problem)

    def _scores(self, search: _VectorSearch, vectors: Vectors, wanted: Mapping[int, str], among: int) -> dict[int, int]:
        for n, text in wanted.items():
            if (vector := search.found.get(text)) is not None:
                vectors.put(n, vector)
        asked = search.found.get(search.message)
        return vectors.scores(asked, among, SCORED) if asked is not None else {}

    async def _search(self, subject_id: str, search: _VectorSearch, wanted: Mapping[int, str], read_to: int | None) -> None:
        """Finds vectors, newest first, until the deadline, and stores the new ones."""
        has_ended, deadline = False, anyio.current_time() + self._config.deadline_s
        try:
            with ended_by(anyio.CancelScope(deadline=deadline)):
                await self._find_all(subject_id, search, wanted, read_to)
                has_ended = True
        except BaseException as error:
            if not await failed_alone(error):
                raise
            has_ended, search.problem = True, self._failed("FAILED", origin_of(error))
        if not has_ended:
            self._batch = max(1, self._batch // 2)
            search.problem = "DEADLINE"
            if search.message not in search.found:
                self._failed("DEADLINE", f"no vector within {self._config.deadline_s:g} s")
        elif search.problem is None:
            self._batch, self._has_failed = min(self._config.batch, self._batch * 2), False
        if search.made:
            await anyio.to_thread.run_sync(self._store.put, subject_id, self._provider.model_id, search.made)

    async def _find_all(self, subject_id: str, search: _VectorSearch, wanted: Mapping[int, str], read_to: int | None) -> None:
        # The message comes first, because nothing can be compared without it; the last turn comes with it.
        newest = [*dict.fromkeys((search.message, *wanted.values()))][:_FIRST]
        await self._find(subject_id, search, newest)
        await self._embed(search, newest)
        if search.message not in search.found:
            return
        unread = [*dict.fromkeys(text for n, text in wanted.items() if read_to is None or n >= read_to)]
        for start in range(0, len(unread), _READ_AT_ONCE):
            await self._find(subject_id, search, unread[start : start + _READ_AT_ONCE])
        await self._embed(search, wanted.values())

    async def _find(self, subject_id: str, search: _VectorSearch, texts: Sequence[str]) -> None:
        """Adds the stored vectors of texts."""
        asked = [text for text in texts if text not in search.found]
        read = partial(self._store.find, subject_id, self._provider.model_id, asked)
        vectors = await anyio.to_thread.run_sync(read, abandon_on_cancel=True)
        search.found.update((text, each) for text, each in zip(asked, vectors, strict=True) if each is not None)

    async def _embed(self, search: _VectorSearch, texts: Iterable[str]) -> None:
        """Adds new vectors of texts that have none."""
        missing = [*dict.fromkeys(text for text in texts if text not in search.found)]
        if missing and anyio.current_time() < self._paused_until:
            search.problem = "PAUSED"
            return
        while missing:
            batch, missing = missing[: self._batch], missing[self._batch :]
            made = dict(zip(batch, await self._vectors_of(batch), strict=True))
            search.found.update(made)
            search.made.update(made)

    async def _vectors_of(self, texts: Sequence[str]) -> list[Vector]:
        vectors = await self._provider.embed(texts)
        if len(vectors) != len(texts):
            raise ValueError(f"{len(vectors):,} vectors for {len(texts):,} texts")
        units = [unit_vector(each) for each in vectors]
        if len({*map(len, units)}) > 1:
            raise ValueError("vectors of different sizes")
        return units

    def _failed(self, problem: EmbeddingProblem, detail: str) -> EmbeddingProblem:
        self._paused_until = anyio.current_time() + self._config.pause_s
        if not self._has_failed:  # once, until it works again
            self._has_failed = True
            _log.warning("no embeddings", model=self._provider.model_id, problem=problem, detail=detail)
        return problem

    def _cut(self, text: str) -> str:
        return text[: self._config.max_text_chars]

    def _history(self, words: TurnWords) -> _Held:
        """The vectors of a history."""
        key = id(words)
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = _Held(ref(words, lambda _: self._drop(key)), self._vectors(self._config.max_cached))
        self._held.move_to_end(key)
        return held

    def _count(self, held: _Held) -> None:
        """Counts a history's vectors. While there are too many, drops the vectors of the least recently used history."""
        if self._held.get(id(held.words())) is not held:  # it was dropped in the meantime
            return
        self._total += held.vectors.held - held.counted
        held.counted = held.vectors.held
        while self._total > self._config.max_cached and len(self._held) > 1:
            self._drop(next(iter(self._held)))

    def _drop(self, key: int) -> None:
        dropped = self._held.pop(key, None)
        self._total -= dropped.counted if dropped is not None else 0


def _kind_of_vectors() -> Callable[[int], Vectors]:
    try:
        # Imported here because numpy belongs to the extra `embeddings`.
        from kitchener.actors.similarity.matrix import VectorMatrix
    except ImportError:
        _log.info("only the newest vectors are compared", problem="numpy is missing", remedy="install kitchener[embeddings]")
        return FewVectors
    return VectorMatrix
