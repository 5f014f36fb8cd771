"""Bounds the tool calls of one reply: their number, and how often a model repeats the same call. Pure.

A refused call is an error that says what the model can do. `executor.py` ends the tool rounds when the bounds are reached.
"""

from kitchener.records.work_order import Constraints


class CallBudget:
    """The calls of one work order so far.

    Args:
        limits: the bounds
    """

    __slots__ = ("_calls", "_equal", "_is_told", "_limits", "is_over")

    is_over: bool
    """Whether the model must reply without further tools."""

    def __init__(self, limits: Constraints) -> None:
        self._limits, self._calls, self._is_told, self.is_over = limits, 0, False, False
        self._equal: dict[tuple[str, bytes], int] = {}

    def refusal(self) -> str | None:
        """Counts a call, even if it cannot run. Returns why it must not run, or None."""
        most = self._limits.max_tool_calls
        self._calls += 1
        if most is None or self._calls <= most:
            return None
        self.is_over = True
        return f"this reply has made all of its {most} tool calls; answer with what you have, and say what is missing"

    def equal_refusal(self, tool_id: str, arguments: bytes) -> str | None:
        """Counts a call that can run. Returns why it must not run again, or None.

        Args:
            tool_id: the tool
            arguments: as canonical JSON
        """
        most, call = self._limits.max_equal_calls, (tool_id, arguments)
        self._equal[call] = times = self._equal.get(call, 0) + 1
        if most is None or times <= most:
            return None
        self.is_over, self._is_told = self._is_told, True
        return (
            f"tool {tool_id!r} was called {most} times with these arguments in this reply, and is not run again;"
            " use the results that you have, try other arguments, or answer without it"
        )
