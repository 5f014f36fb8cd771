"""Turns the cost of a turn or of one model call into the token counts that a client gets."""

from typing import NamedTuple, Self

from kitchener.model_usage import Usage
from kitchener.records.turn import TurnResult


class TokenUsage(NamedTuple):
    """The tokens of an answer."""

    read: int = 0
    """Tokens of all prompts, including those that a provider's cache served."""
    written: int = 0
    cached: int = 0
    """Prompt tokens that a provider's cache served."""

    @classmethod
    def of_turn(cls, result: TurnResult) -> Self:
        """The tokens of a turn, and of the turns that its tools ran in other sessions."""
        total = result.cost_summary
        cached = total.get("cached_tokens")
        if cached is None:  # there were none, or the turn was recorded before its cost had them
            cached = sum(each["cost"].get("cached_tokens", 0) for each in result.wo_chain_summary)
        return cls(total.get("input_tokens", 0), total.get("output_tokens", 0), cached)

    @classmethod
    def of_call(cls, usage: Usage) -> Self:
        """The tokens of one model call."""
        return cls(usage.input_tokens, usage.output_tokens, usage.cached_tokens or 0)
