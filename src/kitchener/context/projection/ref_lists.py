"""Encodes long lists of references as runs of positions and as differences from another list."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kitchener.records.ref import Ref

Runs = list[list[int]]
"""Positions as `[first, one past the last]`."""
Step = tuple[int, int] | list[Ref]
"""A run of positions that is kept, or references that are new."""


def edit_script(before: Sequence[Ref], after: Sequence[Ref]) -> list[Step]:
    """Runs of `before` that are kept and references that are new, in the order of `after`."""
    position = {ref: n for n, ref in enumerate(before)}
    script: list[Step] = []
    cursor = 0
    for ref in after:
        found = position.get(ref, -1)
        last = script[-1] if script else None
        if found < cursor:
            if isinstance(last, list):
                last.append(ref)
            else:
                script.append([ref])
            continue
        cursor = found + 1
        if isinstance(last, tuple) and last[1] == found:
            script[-1] = (last[0], cursor)
        else:
            script.append((found, cursor))
    return script


def runs_of(indexes: Sequence[int]) -> Runs:
    """Positions, in order, as runs."""
    runs: Runs = []
    for index in indexes:
        if runs and runs[-1][1] == index:
            runs[-1][1] = index + 1
        else:
            runs.append([index, index + 1])
    return runs


def written_edits(script: Iterable[Step]) -> tuple[list[Any], int]:
    """A script as JSON, and how many references in it are new."""
    edits: list[Any] = []
    added = 0
    for step in script:
        if isinstance(step, tuple):
            if edits and isinstance(edits[-1], list) and edits[-1][1] == step[0]:
                edits[-1][1] = step[1]
            else:
                edits.append(list(step))
        elif step:
            added += len(step)
            edits.append({"add": [ref.as_json() for ref in step]})
    return edits, added


def apply_edits(edits: Iterable[Any], before: Sequence[Ref]) -> tuple[Ref, ...]:
    """The list that a written script makes of the one before it; raises ValueError where that has no such position."""
    after: list[Ref] = []
    for step in edits:
        if isinstance(step, Mapping):
            after += read_refs(step["add"])
        else:
            after += [before[n] for n in _range(step, len(before))]
    return tuple(after)


def read_refs(values: Iterable[Any]) -> tuple[Ref, ...]:
    """References as they stand in a payload."""
    return tuple([Ref.from_mapping(each) for each in values])


def positions_of(runs: Iterable[Sequence[int]], size: int) -> list[int]:
    """The positions of some runs in a list of this size; raises ValueError where it has no such position."""
    return [n for run in runs for n in _range(run, size)]


def _range(run: Sequence[int], size: int) -> range:
    first, past = run
    if not 0 <= first <= past <= size:
        raise ValueError(f"positions {first} to {past} are not in a list of {size}: this is not the base it was made from")
    return range(first, past)
