"""Flags: conflicts in a decision that a person should look at."""

from typing import NamedTuple

from kitchener.records.entries import FlagKind
from kitchener.records.ref import Ref


class Flag(NamedTuple):
    """A conflict in a decision that a person may want to resolve."""

    kind: FlagKind
    detail: str
    """What happened and what to do, for a reader. Contains ids, never what a subject said."""
    details_ref: Ref | None = None
    """The entry that shows the conflict best; None: there is none."""
    involved_refs: tuple[Ref, ...] = ()
    """All entries involved."""
