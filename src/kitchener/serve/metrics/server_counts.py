"""Counts what the server does with requests and their turns. The counts are of this process, since it began."""

from collections import Counter
from collections.abc import Iterable
from typing import Final, Literal

from kitchener.lanes.durations import Durations

FIRST_TEXT_BOUNDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Upper bounds of the buckets, seconds: those of OpenTelemetry's generative AI conventions for the first piece of a stream."""
TURN_BOUNDS: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)
"""Upper bounds of the buckets, seconds: those of the same conventions for one run of an agent."""

ServedEnd = Literal["completed", "degraded", "failed", "stopped"]


class TurnCounts:
    """The turns of requests to one agent class."""

    __slots__ = ("ends", "first_text_s", "turn_s")

    def __init__(self) -> None:
        self.ends: Counter[ServedEnd] = Counter()
        """By how they ended."""
        self.turn_s, self.first_text_s = Durations(TURN_BOUNDS), Durations(FIRST_TEXT_BOUNDS)
        """How long they took with their waits, and how long until the first text of a stream."""


class ServerCounts:
    """The counts of a server since it began.

    Args:
        agent_classes: the agent classes that it serves
    """

    def __init__(self, agent_classes: Iterable[str]) -> None:
        self.answers: Counter[int] = Counter()
        """Answers by their status."""
        self.turns = {name: TurnCounts() for name in agent_classes}
        """By agent class."""
