"""The tokens that a model call has used, as its provider counted them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NotRequired, Self, TypedDict, cast

from kitchener.plain_names import quoted

MOST_TOKENS: Final = 1_000_000_000
"""The largest valid count of tokens. No model comes near it, and the sums of a session stay within what a ledger can store."""
_COUNTS: Final = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens")


class UsageMapping(TypedDict):
    """Tokens of one model call."""

    input_tokens: int
    output_tokens: int
    cached_tokens: NotRequired[int]
    """Input tokens that the provider's cache served; absent: the provider did not say."""
    cache_write_tokens: NotRequired[int]
    """Input tokens that the provider wrote to its cache; absent: the provider did not say."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer, as the provider counted them."""

    input_tokens: int
    """Tokens sent, including cached ones."""
    output_tokens: int
    """Tokens received."""
    cached_tokens: int | None = None
    """Input tokens that came from the provider's cache; None: the provider did not say."""
    cache_write_tokens: int | None = None
    """Input tokens that the provider wrote to its cache, which some charge more for; None: the provider did not say."""

    @classmethod
    def on_record(cls, counts: object) -> Self | None:
        """The counts that an entry of a ledger has, which another program or a newer version may have written.

        Returns None if they are not valid counts. Those that this version does not know are ignored.
        """
        if not isinstance(counts, Mapping):
            return None
        told = cast("UsageMapping", counts)
        sent, received = told.get("input_tokens", -1), told.get("output_tokens", -1)
        usage = cls(sent, received, told.get("cached_tokens"), told.get("cache_write_tokens"))
        return usage if usage.problem() is None else None

    @property
    def served_tokens(self) -> int:
        """Input tokens that a cache served. Some servers tell more than were sent."""
        return min(self.cached_tokens or 0, self.input_tokens)

    @property
    def new_tokens(self) -> int:
        """Tokens that no cache served, sent and received. A turn's budget counts these."""
        return self.input_tokens - self.served_tokens + self.output_tokens

    def problem(self) -> str | None:
        """Returns an error text about the first count that is invalid; None: all are valid."""
        counts = (self.input_tokens, self.output_tokens, self.cached_tokens or 0, self.cache_write_tokens or 0)
        for place, count in enumerate(counts):
            if type(count) is not int or not 0 <= count <= MOST_TOKENS:  # a bool is no count either
                return f"usage.{_COUNTS[place]} = {quoted(count)}: expected a whole number from 0 to {MOST_TOKENS:,}"
        return None

    def as_mapping(self) -> UsageMapping:
        """The counts as a JSON object."""
        counts: UsageMapping = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        if self.cached_tokens is not None:
            counts["cached_tokens"] = self.cached_tokens
        if self.cache_write_tokens is not None:
            counts["cache_write_tokens"] = self.cache_write_tokens
        return counts
