"""Turns texts into vectors with a static model on this machine: the mean of the vectors of a text's tokens.

Tokens without a meaning of their own do not count: marks, and words such as "the" or "what".

The weights are part of the package `wordllama` (extra `embeddings`), so nothing is downloaded. Only its files are used:
importing it would set up the program's logging.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from string import punctuation
from typing import Any, Final

import anyio.to_thread

from kitchener.errors import ConfigError
from kitchener.errors.root import CONFIGURATION
from kitchener.extras import needs

_PACKAGE: Final = "wordllama"
_WEIGHTS: Final = "weights/l2_supercat_256.safetensors"
_TOKENIZER: Final = "tokenizers/l2_supercat_tokenizer_config.json"
_MODEL: Final = "wordllama/l2_supercat_256/2"
"""The number at the end changes when tokens are weighted differently, because vectors are stored under this name."""
_WITHOUT_MEANING: Final = """
a an the and or but if so than that this these those there here it its as at by for from in into of on out over to up
with about i me my mine you your yours he him his she her hers we us our ours they them their theirs who whom whose what
which when where why how be am is are was were been being do does did doing done have has had having can could may might
must shall should will would not no any some all more most much many own same such only also just very too then now
"""
_WORD_START: Final = "\u2581"
"""The first character of a token that begins a word."""


class StaticEmbeddings:
    """An `EmbeddingProvider` that runs on this machine. Created by `open_static`.

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
        raise ConfigError(CONFIGURATION, "embeddings.kind", "'static'", needs("embeddings")) from None
    spec = find_spec(_PACKAGE)
    places = [Path(each) for each in (spec.submodule_search_locations or ())] if spec is not None else []
    for place in places:
        if (place / _WEIGHTS).is_file() and (place / _TOKENIZER).is_file():
            weights = load_file(place / _WEIGHTS)["embedding.weight"].astype("float32")
            tokenizer = Tokenizer.from_file(str(place / _TOKENIZER))
            tokenizer.no_padding()
            tokenizer.no_truncation()
            weights[_without_meaning(tokenizer)] = 0.0
            return StaticEmbeddings(weights, tokenizer)
    raise ConfigError(CONFIGURATION, "embeddings.kind", "'static'", needs("embeddings"))


def _without_meaning(tokenizer: Any) -> list[int]:
    """The tokens that are marks or words without a meaning of their own."""
    said = [form for word in _WITHOUT_MEANING.split() for form in (word, word.capitalize())]
    found = [tokenizer.token_to_id(start + each) for each in (*said, *punctuation) for start in (_WORD_START, "")]
    return sorted({each for each in found if each is not None})
