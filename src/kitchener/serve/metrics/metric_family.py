"""Writes one metric with all its labels in the text format of Prometheus. It does not know the measured quantity."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from kitchener.lanes.durations import DurationCounts

Labels = Mapping[str, object]
_NONE: Labels = {}


class MetricFamily(NamedTuple):
    """One metric: its values by their labels."""

    name: str
    kind: Literal["counter", "gauge"]
    meaning: str
    """One sentence, without line breaks and backslashes."""
    values: Iterable[tuple[Labels, float]]

    def lines(self) -> Iterator[str]:
        """The metric as text."""
        yield from _head(self.name, self.kind, self.meaning)
        for labels, value in self.values:
            yield f"{self.name}{_shown(labels)} {value}"


class HistogramFamily(NamedTuple):
    """One histogram of durations: its counts by their labels."""

    name: str
    meaning: str
    values: Iterable[tuple[Labels, DurationCounts]]

    def lines(self) -> Iterator[str]:
        """The histogram as text."""
        yield from _head(self.name, "histogram", self.meaning)
        for labels, found in self.values:
            total = 0
            for bound, count in zip((*map(str, found.bounds), "+Inf"), found.counts, strict=True):
                total += count
                yield f"{self.name}_bucket{_shown({**labels, 'le': bound})} {total}"
            yield f"{self.name}_sum{_shown(labels)} {found.sum_s:.6f}"
            yield f"{self.name}_count{_shown(labels)} {total}"


def single(value: float) -> list[tuple[Labels, float]]:
    """The values of a metric without labels."""
    return [(_NONE, value)]


def _head(name: str, kind: str, meaning: str) -> tuple[str, str]:
    return f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"


def _shown(labels: Labels) -> str:
    shown = ",".join(f'{label}="{_escaped(str(each))}"' for label, each in labels.items())
    return f"{{{shown}}}" if shown else ""


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
