"""Adds up what one work order has used, and computes what its budgets leave for the next call.

This module records nothing and makes no calls. Explained in `docs/work-orders.md`.
"""

from kitchener.actors.executor.shown_results import ShownResult
from kitchener.model_usage import Usage
from kitchener.records.prompt import CUT_SHORT, RULES_MODEL, PromptResponse
from kitchener.records.tokens import BYTES_PER_TOKEN, tokens_of_bytes
from kitchener.records.work_order import NO_COST, Constraints, Cost


class CostTally:
    """The tokens and calls of one work order.

    Args:
        limits: the budgets of the work order
        started_us: the time of day when the work order began, microseconds
    """

    __slots__ = (
        "_cached_tokens",
        "_fresh_tokens",
        "_input_tokens",
        "_limits",
        "_nested",
        "_output_tokens",
        "_results_tokens",
        "_started_us",
        "_tool_ids",
        "_window_tokens",
        "is_cut",
        "llm_calls",
    )

    is_cut: bool
    """Whether the last answer is only a beginning."""
    llm_calls: int
    """Model calls with an answer."""

    def __init__(self, limits: Constraints, started_us: int) -> None:
        self._limits, self._started_us = limits, started_us
        self.is_cut, self.llm_calls = False, 0
        self._input_tokens = self._output_tokens = self._cached_tokens = 0
        self._window_tokens = self._fresh_tokens = self._results_tokens = 0
        self._tool_ids: list[str] = []
        self._nested: Cost | None = None

    def add_answer(self, response: PromptResponse) -> None:
        """Adds what an answered call has used. An answer of the rules counts as no model call."""
        usage, self.is_cut = response.usage, response.finish_reason in CUT_SHORT
        self.llm_calls += response.model_id != RULES_MODEL
        cached = self._add_tokens(usage)
        self._window_tokens = usage.input_tokens + usage.output_tokens  # what the next call begins with
        self._fresh_tokens = self._window_tokens - cached

    def add_unusable(self, usage: Usage) -> None:
        """Adds the tokens of an answer that cannot be used. It counts as no model call."""
        self._add_tokens(usage)

    def _add_tokens(self, usage: Usage) -> int:
        """Adds the tokens of an answer. Returns how many of them the budget does not count, because a cache served them."""
        self._input_tokens += usage.input_tokens
        self._output_tokens += usage.output_tokens
        cached = usage.served_tokens if self._limits.reply_reserve is not None else 0
        self._cached_tokens += cached
        return cached

    def add_tool(self, tool_id: str) -> None:
        """Counts a tool call that starts."""
        self._tool_ids.append(tool_id)

    def add_nested(self, cost: Cost) -> None:
        """Adds the cost of the turns that a tool ran."""
        self._nested = cost.plus(self._nested)

    def cost(self, now_us: int) -> Cost:
        """The cost of the work order so far.

        Args:
            now_us: the time of day, microseconds
        """
        # No validation is needed: the counts come from this object, and each recorded call had integer tokens.
        return NO_COST.replaced(
            input_tokens=self._input_tokens,
            output_tokens=self._output_tokens,
            cached_tokens=self._cached_tokens,
            llm_calls=self.llm_calls,
            tool_calls=len(self._tool_ids),
            tool_ids_used=tuple(self._tool_ids),
            elapsed_ms=max(0, (now_us - self._started_us) // 1_000),
            nested=self._nested,
        )

    @property
    def has_room(self) -> bool:
        """Whether the budgets leave room for another round of tools: for the next call, and for a last call of the same size.

        If a cache served the last call, it is expected to serve the next one, but not the final one, which may show no tools.
        Without a `reply_reserve`, as under version 1 of the policy, the model may always continue.
        """
        reserve, most = self._limits.reply_reserve, self._limits.results_budget
        if most is not None and self._results_tokens >= most:
            return False
        return reserve is None or self._tokens_left >= self._fresh_tokens + self._window_tokens + 2 * reserve

    @property
    def tokens_for_next_call(self) -> int:
        """Most tokens of the next answer. Never less than `reply_reserve`; without a reserve, below 1 if no tokens are left."""
        reserve = self._limits.reply_reserve
        return self._tokens_left if reserve is None else max(reserve, self._tokens_left - self._fresh_tokens)

    @property
    def _tokens_left(self) -> int:
        """Tokens left of the work order's budget. Input from a cache does not count."""
        return self._limits.token_budget - (self._input_tokens - self._cached_tokens + self._output_tokens)

    def within_budget(self, shown: ShownResult) -> ShownResult:
        """Counts a result that the model is shown, and returns it, cut to what is left of `results_budget`."""
        size, most = tokens_of_bytes(shown.size), self._limits.results_budget
        if most is not None and self._results_tokens + size > most:
            shown = shown.cut(max(0, most - self._results_tokens) * BYTES_PER_TOKEN)
            self._results_tokens = most
            size = tokens_of_bytes(shown.size)
        else:
            self._results_tokens += size
        self._window_tokens += size
        self._fresh_tokens += size
        return shown
