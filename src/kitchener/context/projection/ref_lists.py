"""Turns lists of references into JSON and back: each list in full, as edits of an earlier list, or as positions in another.

This module knows no projections; `record.py` does.
"""

from collections.abc import Callable, Iterable, Sequence

from kitchener.records.entries import AddedRefs, Runs
from kitchener.records.ref import ListedRefMapping, Ref, RefGroup, refs_of

Step = tuple[int, int] | list[Ref]
"""A run of positions that is kept, or new references."""


def read_refs(values: Iterable[RefGroup | ListedRefMapping]) -> tuple[Ref, ...]:
    """References as a payload contains them, one by one or in groups."""
    found: list[Ref] = []
    for each in values:
        found += [Ref.from_listed(each)] if "ref" in each else refs_of(each)
    return tuple(found)


def edit_script(before: Sequence[Ref], after: Sequence[Ref]) -> list[Step]:
    """The runs of `before` that are kept and the new references, in the order of `after`."""
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


def listed(refs: Iterable[Ref]) -> list[ListedRefMapping]:
    """References as objects of their own, each with its ledger: longer than groups, for lists of a few."""
    return [ref.as_listed() for ref in refs]


def written_edits(
    script: Iterable[Step], written: Callable[[Sequence[Ref]], list[ListedRefMapping] | list[RefGroup]] = listed
) -> tuple[list[list[int] | AddedRefs], int]:
    """A script as JSON, and the number of new references in it; `written` gives the JSON of these."""
    edits: list[list[int] | AddedRefs] = []
    added = 0
    for step in script:
        if isinstance(step, tuple):
            last = edits[-1] if edits else None
            if isinstance(last, list) and last[1] == step[0]:
                last[1] = step[1]
            else:
                edits.append(list(step))
        elif step:
            added += len(step)
            edits.append({"add": written(step)})
    return edits, added


def apply_edits(edits: Iterable[list[int] | AddedRefs], before: Sequence[Ref]) -> tuple[Ref, ...]:
    """Applies a written script to a list; raises ValueError if the list lacks its runs of positions, or they do not ascend."""
    after: list[Ref] = []
    least = 0
    for step in edits:
        if isinstance(step, list):
            after += [before[n] for n in _range(step, least, len(before))]
            least = step[1]
        else:
            after += read_refs(step["add"])
    return tuple(after)


def runs_of(indexes: Sequence[int]) -> Runs:
    """Ascending positions as runs."""
    runs: Runs = []
    for index in indexes:
        if runs and runs[-1][1] == index:
            runs[-1][1] = index + 1
        else:
            runs.append([index, index + 1])
    return runs


def positions_of(runs: Iterable[Sequence[int]], size: int) -> list[int]:
    """The positions in these runs; raises ValueError if a list of this size lacks one, or they do not ascend."""
    found: list[int] = []
    least = 0
    for run in runs:
        found += _range(run, least, size)
        least = run[1]
    return found


def _range(run: Sequence[int], least: int, size: int) -> range:
    """A run from `least` on. Runs ascend, so that a record of a few bytes gives no list that is longer than its base."""
    first, end = run
    if not least <= first <= end <= size:
        text = f"positions {first} to {end} are not in a list of {size}, from {least} on: this is not the base it was made from"
        raise ValueError(text)
    return range(first, end)
