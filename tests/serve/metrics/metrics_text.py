"""Reads the text format of Prometheus strictly: what its own parser would refuse or misread is an error here."""

import math
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{([^\n]*)\})? ([^ ]+)")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\n"])*)"(?:,(?=.)|$)')
_SUFFIXES: Final = ("_bucket", "_sum", "_count")


@dataclass
class ReadFamily:
    """One metric that was read."""

    name: str
    kind: str
    meaning: str
    samples: dict[str, float] = field(default_factory=dict)
    """Values by the name and the labels as they stand in the text."""
    labels: set[str] = field(default_factory=set)
    """The names of its labels."""


def read_metrics(text: str) -> dict[str, ReadFamily]:
    """The metrics by their names.

    Raises:
        ValueError: the text is not of the format
    """
    if not text.endswith("\n"):
        raise ValueError("the last line has no end")
    found, current = dict[str, ReadFamily](), list[ReadFamily]()
    lines = iter(text[:-1].split("\n"))
    for line in lines:
        if line.startswith("# HELP "):
            name, _, meaning = line.removeprefix("# HELP ").partition(" ")
            head, kind = next(lines, "").rpartition(" ")[::2]
            if name in found or not _NAME.fullmatch(name) or head != f"# TYPE {name}" or not meaning:
                raise ValueError(f"{line!r}: it stands twice, has no meaning, or its type does not follow")
            found[name] = ReadFamily(name, kind, meaning)
            current = [found[name]]
        else:
            if not current:
                raise ValueError(f"{line!r} stands before any head")
            _take(current[0], line)
    for family in found.values():
        _check(family)
    return found


def _take(family: ReadFamily, line: str) -> None:
    matched = _SAMPLE.fullmatch(line)
    if matched is None:
        raise ValueError(f"{line!r} is no sample")
    name, labels, value = matched.groups()
    expected = {family.name + each for each in _SUFFIXES} if family.kind == "histogram" else {family.name}
    shown, at, names = labels or "", 0, list[str]()
    while at < len(shown):
        label = _LABEL.match(shown, at)
        if label is None:
            raise ValueError(f"{line!r}: bad labels")
        names.append(label[1])
        at = label.end()
    key = line.rpartition(" ")[0]
    if name not in expected or key in family.samples or len(set(names)) < len(names):
        raise ValueError(f"{line!r} does not belong to {family.name}, or is there twice")
    family.samples[key] = float(value)
    family.labels.update(names)


def _check(family: ReadFamily) -> None:
    if family.kind not in ("counter", "gauge", "histogram"):
        raise ValueError(f"{family.name} has the kind {family.kind}")
    if (family.kind == "counter") != family.name.endswith("_total"):
        raise ValueError(f"{family.name} is a {family.kind}")
    if family.kind != "gauge" and any(math.isnan(each) or each < 0 for each in family.samples.values()):
        raise ValueError(f"{family.name} has values that no count can have")
    if family.kind == "histogram":
        _check_buckets(family)


def _check_buckets(family: ReadFamily) -> None:
    series = dict[str, list[tuple[float, float]]]()
    for key, value in family.samples.items():
        if key.startswith(f"{family.name}_bucket{{"):
            rest, _, bound = key.removeprefix(f"{family.name}_bucket{{").removesuffix("}").rpartition('le="')
            series.setdefault(rest.rstrip(","), []).append((float(bound.removesuffix('"')), value))
    for labels, buckets in series.items():
        rising = all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(buckets))
        shown = f"{{{labels}}}" if labels else ""
        counted = family.samples[f"{family.name}_count{shown}"]
        if not rising or buckets[-1] != (math.inf, counted) or f"{family.name}_sum{shown}" not in family.samples:
            raise ValueError(f"the buckets of {family.name}{shown} do not rise to its count")
