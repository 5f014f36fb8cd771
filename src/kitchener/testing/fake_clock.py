"""A time of day that tests advance."""


class FakeClock:
    """A time of day that moves only when a test advances it. It is a `kitchener.clock.Clock`.

    Args:
        time_us: where it starts, microseconds since the Unix epoch; the default is 2026-01-01T00:00:00Z
    """

    def __init__(self, time_us: int = 1_767_225_600_000_000) -> None:
        self._time_us = time_us

    def time_us(self) -> int:
        """Microseconds since the Unix epoch, UTC."""
        return self._time_us

    def set(self, time_us: int) -> None:
        """Puts the clock to a time, forwards or back, microseconds since the Unix epoch."""
        self._time_us = time_us

    def advance(self, seconds: float = 0.0, *, us: int = 0) -> None:
        """Moves the clock on, by seconds and microseconds."""
        self._time_us += round(seconds * 1_000_000) + us
