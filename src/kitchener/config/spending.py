"""Defines the settings of `[spending]`."""

from kitchener.config.router import Price
from kitchener.config.settings_parser import Positive, Settings


class SpendingConfig(Settings):
    """`[spending]`: what the model calls of one person may use. It is checked before each call.

    Sums of money are in the currency of `[router.prices]`. With one of them set, a model without a price is not asked; the
    built-in models are free.
    """

    subject_day: Price | None = None
    """Most that the calls of one subject may cost in a day, midnight to midnight UTC, in all sessions and agent classes. None:
    no limit."""
    subject_day_tokens: Positive | None = None
    """Most tokens, sent and received, that the calls of one subject may use in such a day. None: no limit."""
    turn: Price | None = None
    """Most that the calls of one turn may cost. `turn_budget` limits its tokens. None: no limit."""

    @property
    def is_on(self) -> bool:
        """Whether any limit is set."""
        return (self.subject_day, self.subject_day_tokens, self.turn) != (None, None, None)
