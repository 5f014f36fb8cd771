"""Adds up recorded calls that were held against another router, by the way that they went and the one they would go. Pure."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from kitchener.tuning.routes import Choice, Rerouted


@dataclass(slots=True)
class Way:
    """Calls that went one way on record and would go one way under the other router."""

    recorded: Choice
    other: Choice
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    recorded_cost: float = 0.0
    other_cost: float = 0.0
    unpriced: int = 0
    """Calls among them without a known price on one side; they are left out of both costs."""

    @property
    def is_changed(self) -> bool:
        """Whether they lead to different ends."""
        return self.recorded.is_elsewhere(self.other)

    def add(self, found: Rerouted) -> None:
        """Counts one more call."""
        self.calls += 1
        if found.call.tokens is not None:
            self.input_tokens += found.call.tokens.input_tokens
            self.output_tokens += found.call.tokens.output_tokens
        if found.recorded_cost is None or found.other_cost is None:
            self.unpriced += 1
        else:
            self.recorded_cost += found.recorded_cost
            self.other_cost += found.other_cost

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON types."""
        names = ("provider_id", "model_id", "route_reason", "state")
        sides = (("recorded", self.recorded), ("other", self.other))
        return {
            **{side: {name: getattr(choice, name) for name in names} for side, choice in sides},
            "changed": self.is_changed,
            "calls": self.calls,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cost": {"recorded": self.recorded_cost, "other": self.other_cost, "unpriced_calls": self.unpriced},
        }


class RouteSummary:
    """What another router comes to, call by call."""

    def __init__(self) -> None:
        self._ways: dict[tuple[Any, ...], Way] = {}
        self._counts: Counter[str] = Counter()

    def add(self, found: Rerouted) -> None:
        """The next call."""
        before, after = (each._replace(failure=None, is_assumed=False) for each in (found.recorded, found.other))
        self._ways.setdefault((before, after), Way(before, after)).add(found)
        counted = {
            "changed": found.is_changed,
            "recorded fallbacks": before.fell_back,
            "other fallbacks": after.fell_back,
            "fallbacks gained": after.fell_back and not before.fell_back,
            "fallbacks lost": before.fell_back and not after.fell_back,
            "recorded failures": before.state == "failed",
            "other failures": after.state == "failed",
            "assumed": found.other.is_assumed,
        }
        self._counts.update(name for name, holds in counted.items() if holds)

    @property
    def ways(self) -> list[Way]:
        """By recorded choice, then by the other one, in alphabetical order."""
        return [self._ways[key] for key in sorted(self._ways, key=lambda key: tuple(each[:4] for each in key))]

    def as_json(self) -> dict[str, Any]:
        """The sums, as JSON types."""
        ways, counts = self.ways, self._counts
        then, now = (sum(getattr(way, f"{side}_cost") for way in ways) for side in ("recorded", "other"))
        return {
            "calls": sum(way.calls for way in ways),
            "changed": counts["changed"],
            "assumed_to_answer": counts["assumed"],
            "fallbacks": {
                "recorded": counts["recorded fallbacks"],
                "other": counts["other fallbacks"],
                "gained": counts["fallbacks gained"],
                "lost": counts["fallbacks lost"],
            },
            "failed": {"recorded": counts["recorded failures"], "other": counts["other failures"]},
            "cost": {
                "recorded": then,
                "other": now,
                "difference": now - then,
                "unpriced_calls": sum(way.unpriced for way in ways),
            },
        }
