"""Reads how many tokens an answer in OpenAI's chat-completions format counts.

A count that cannot be is taken as not given (`impossible_counts.py`), so that `answer_reader.py` estimates it. Explained in
`docs/gateway.md`.
"""

from collections.abc import Mapping
from typing import Final

from kitchener.gateway.providers.impossible_counts import CountCheck
from kitchener.model_usage import MOST_TOKENS, Usage

_CACHE_READS: Final = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens")
"""Counts of input tokens that a cache served, as servers name them."""
_CACHE_WRITES: Final = ("cache_write_tokens", "cache_creation_input_tokens")
"""Counts of input tokens that were written to a cache, as servers name them."""


class TokenCounts:
    """Reads the counts of one provider's answers.

    Args:
        provider_id: the provider's id in the configuration, for the log
    """

    def __init__(self, provider_id: str) -> None:
        self._check = CountCheck(provider_id)

    def usage(self, counts: object) -> Usage:
        """Returns the counts of an answer; 0: it does not say how many tokens were sent or received."""
        if not isinstance(counts, dict):
            self._check.note("usage", counts)
            return Usage(0, 0)
        details = counts.get("prompt_tokens_details")
        places = (details, counts) if isinstance(details, dict) else (counts,)
        sent, received, total = (self._count(counts, f"{name}_tokens") for name in ("prompt", "completion", "total"))
        read, written = (self._first(places, names) for names in (_CACHE_READS, _CACHE_WRITES))
        of_cache, is_sent_told = (read or 0) + (written or 0), sent is not None
        sent, received = sent or 0, received or 0
        if of_cache > sent:  # Anthropic's way to count, which some gateways pass on: `prompt_tokens` are the others
            sent = min(sent + of_cache, MOST_TOKENS)
        if total is not None and is_sent_told:
            received = max(received, total - sent)  # xAI and Google leave the thoughts out of `completion_tokens`
        return Usage(sent, received, read, written)

    def _first(self, places: tuple[Mapping[str, object], ...], names: tuple[str, ...]) -> int | None:
        """The first count that is there; None: the server did not say."""
        found = (self._count(each, name) for each in places for name in names)
        return next((count for count in found if count is not None), None)

    def _count(self, counts: Mapping[str, object], name: str) -> int | None:
        return self._check.count(name, counts.get(name))
