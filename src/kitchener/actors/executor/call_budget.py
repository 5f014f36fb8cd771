"""Bounds the tool calls of one reply: how many there are, and how often a model makes the same call again. Pure.

A refused call is an error that says what the model can do. `executor.py` ends the tool rounds when the bounds are reached.
"""

from collections import Counter

from kitchener.records.work_order import Constraints


class CallBudget:
    """The calls of one work order so far.

    Args:
        limits: the bounds
    """

    def __init__(self, limits: Constraints) -> None:
        self._most, self._most_equal = limits.max_tool_calls, limits.max_equal_calls
        self._calls = 0
        self._equal = Counter[tuple[str, bytes]]()
        self._is_told = False
        self.is_over = False
        """Whether the model must reply without further tools."""

    def refusal(self) -> str | None:
        """Counts a call, also one that cannot run. Returns why it must not, or None."""
        self._calls += 1
        if self._most is None or self._calls <= self._most:
            return None
        self.is_over = True
        return f"this reply has made all of its {self._most} tool calls; answer with what you have, and say what is missing"

    def equal_refusal(self, tool_id: str, arguments: bytes) -> str | None:
        """Counts a call that can run. Returns why it must not run once more, or None.

        Args:
            tool_id: the tool
            arguments: as canonical JSON
        """
        if self._most_equal is None:
            return None
        self._equal[tool_id, arguments] += 1
        if self._equal[tool_id, arguments] <= self._most_equal:
            return None
        self.is_over, self._is_told = self._is_told, True
        return (
            f"tool {tool_id!r} was called {self._most_equal} times with these arguments in this reply, and is not run again;"
            " use the results that you have, try other arguments, or answer without it"
        )
