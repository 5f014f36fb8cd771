"""Turns texts into vectors by hashing their groups of three letters. It needs no model and knows no meaning.

Texts that share parts of words have similar vectors. It is for tests, and to try embeddings offline.
"""

from collections.abc import Sequence
from typing import Final
from zlib import crc32

_DIMENSIONS: Final = 256


class HashingEmbeddings:
    """An `EmbeddingProvider` whose vectors depend only on the texts. The vector of an empty text has only zeros."""

    model_id = f"hashing/{_DIMENSIONS}"

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """See `EmbeddingProvider`."""
        return [_vector(text) for text in texts]


def _vector(text: str) -> list[float]:
    vector = [0.0] * _DIMENSIONS
    for word in text.casefold().split():
        padded = f" {word} "
        for start in range(len(padded) - 2):
            place = crc32(padded[start : start + 3].encode())
            vector[place % _DIMENSIONS] += 1.0 if place & 0x8000_0000 else -1.0
    return vector
