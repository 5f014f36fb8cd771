"""Flags: conflicts in a decision that a person should look at."""

from typing import Literal, NamedTuple

from kitchener.records.ref import Ref

FlagKind = Literal[
    "COMPETING_INTENTS",
    "CONSTRAINT_CONFLICT",
    "UNCLEAR_INTENT",
    "REPEATED_FAILURE",
    "INVALID_LIFECYCLE",
    "UNSUPPRESSIBLE_OVER_BUDGET",
]


class Flag(NamedTuple):
    """Something in a decision that a person may want to settle."""

    kind: FlagKind
    """What it is."""
    detail: str
    """What happened and what to do, for a reader. Holds ids, never what a subject said."""
    details_ref: Ref | None = None
    """The entry that shows it best, where one does."""
    involved_refs: tuple[Ref, ...] = ()
    """Every entry that has a part in it."""
