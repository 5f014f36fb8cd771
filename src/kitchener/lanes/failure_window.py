"""Counts the failures of an actor within a sliding window of time."""

from collections import deque


class FailureWindow:
    """Counts failures within a sliding window of time, one for each origin.

    Args:
        limit: the number of failures that is too many
        window_s: length of the window, seconds
    """

    def __init__(self, limit: int, window_s: float) -> None:
        self.limit, self.window_s = limit, window_s
        self._failures: deque[tuple[float, object]] = deque()

    def add(self, now: float, origin: object) -> bool:
        """Counts a failure. Returns whether there are too many within the window.

        Args:
            now: on the event loop's clock, seconds
            origin: one origin counts once; None: the failure counts by itself
        """
        failures = self._failures
        while failures and now - failures[0][0] > self.window_s:
            failures.popleft()
        if origin is not None and any(origin == counted for _, counted in failures):
            return False
        failures.append((now, origin))
        return len(failures) >= self.limit
