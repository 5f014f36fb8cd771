"""Turns texts into vectors with a static model on this machine: the mean of the vectors of a text's tokens.

The weights are part of the package `wordllama` (extra `embeddings`), so nothing is downloaded. Only its files are used:
importing it would set up the program's logging.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import anyio.to_thread

from kitchener.errors import ConfigError

_PACKAGE: Final = "wordllama"
_WEIGHTS: Final = "weights/l2_supercat_256.safetensors"
_TOKENIZER: Final = "tokenizers/l2_supercat_tokenizer_config.json"
_MODEL: Final = "wordllama/l2_supercat_256"
_MISSING: Final = "needs the extra `embeddings`: pip install 'kitchener[embeddings]'"


class StaticEmbeddings:
    """An `EmbeddingProvider` that asks nobody. Made by `open_static`.

    Args:
        weights: the vector of each token, an array of tokens by dimensions
        tokenizer: splits a text into tokens
    """

    model_id = _MODEL

    def __init__(self, weights: Any, tokenizer: Any) -> None:  # of libraries that are imported only where they are used
        self._weights, self._tokenizer = weights, tokenizer

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """See `EmbeddingProvider`. Computes in a worker thread."""
        return await anyio.to_thread.run_sync(self._vectors, list(texts), abandon_on_cancel=True)

    def _vectors(self, texts: list[str]) -> list[list[float]]:
        known, vectors = len(self._weights), list[list[float]]()
        for tokens in self._tokenizer.encode_batch(texts, add_special_tokens=False):
            ids = [each for each in tokens.ids if each < known]
            mean = self._weights[ids].mean(axis=0) if ids else self._weights[0] * 0
            vectors.append(mean.tolist())
        return vectors


def open_static() -> StaticEmbeddings:
    """Reads the model's files. Blocks for a moment.

    Raises:
        ConfigError: the extra `embeddings` is missing, or its package has no such model
    """
    try:
        # Imported here because they belong to the extra.
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer
    except ImportError:
        raise ConfigError("configuration", "embeddings.kind", "'static'", _MISSING) from None
    spec = find_spec(_PACKAGE)
    places = [Path(each) for each in (spec.submodule_search_locations or ())] if spec is not None else []
    for place in places:
        if (place / _WEIGHTS).is_file() and (place / _TOKENIZER).is_file():
            weights = load_file(place / _WEIGHTS)["embedding.weight"].astype("float32")
            tokenizer = Tokenizer.from_file(str(place / _TOKENIZER))
            tokenizer.no_padding()
            tokenizer.no_truncation()
            return StaticEmbeddings(weights, tokenizer)
    raise ConfigError("configuration", "embeddings.kind", "'static'", _MISSING)
