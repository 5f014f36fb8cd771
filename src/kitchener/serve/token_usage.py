"""Turns the cost of a turn or of one model call into the token counts that a client gets."""

from typing import NamedTuple, Self

from kitchener.records.prompt import Usage
from kitchener.records.turn import TurnResult


class TokenUsage(NamedTuple):
    """The tokens of an answer."""

    read: int = 0
    """Of all prompts, also what a cache of the provider served."""
    written: int = 0
    cached: int = 0
    """What a cache of the provider served."""

    @classmethod
    def of_turn(cls, result: TurnResult) -> Self:
        """What a turn used; what it had from a cache without the turns that its tools ran elsewhere."""
        total = result.cost_summary
        cached = sum(each["cost"].get("cached_tokens", 0) for each in result.wo_chain_summary)
        return cls(total.get("input_tokens", 0), total.get("output_tokens", 0), cached)

    @classmethod
    def of_call(cls, usage: Usage) -> Self:
        """What one call of a model used."""
        return cls(usage.input_tokens, usage.output_tokens, usage.cached_tokens or 0)
