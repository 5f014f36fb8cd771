"""Finds the active intent of a session.

An agent has at most one active intent per session. The candidates are the session's own live intents. An ancestor of a
candidate does not compete with it, and a fork may name the child that continues. If several candidates remain, the ruleset
decides whether to ask the user or to take the newest. `transitions.py` decides how a message changes the active intent.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from kitchener.context.flags import Flag
from kitchener.context.fold.lifecycle import IntentRecord
from kitchener.context.fold.state import ContextState
from kitchener.context.ruleset import Ruleset

MAX_INVOLVED = 20
"""Entries that a flag names; the newest of them."""


class Resolution(NamedTuple):
    """The active intent, and what stood in the way."""

    active: str | None
    """Its id; None: there is none, or the way is blocked."""
    blocked_by: Literal["INVALID_LIFECYCLE", "COMPETING_INTENTS"] | None = None
    """Why nothing may be projected; None: it may."""
    competing: tuple[str, ...] = ()
    """Live intents between which nobody decided, in the order of their declarations."""
    flags: tuple[Flag, ...] = ()
    """What somebody should look at."""


def resolve_active(state: ContextState, ruleset: Ruleset, *, intent_id: str | None = None) -> Resolution:
    """The intent that the next turn serves.

    Args:
        state: the session's fold
        ruleset: what to do about conflicts and impossible events
        intent_id: take this one if it is live, whatever else is; for looking at a session, not for running it
    """
    flags = _invalid_flags(state)
    if flags and ruleset.invalid_lifecycle_policy == "block":
        return Resolution(None, "INVALID_LIFECYCLE", (), flags)
    if intent_id is not None:
        return Resolution(intent_id if intent_id in state.live_intents else None, None, (), flags)
    candidates = _candidates(state)
    if len(candidates) <= 1:
        return Resolution(candidates[0].intent_id if candidates else None, None, (), flags)
    names = tuple([each.intent_id for each in candidates])
    refs = tuple([each.declared.ref for each in candidates])
    detail = f"{len(names)} intents are live and none gave way: {', '.join(names)}; keep one of them"
    flags = (*flags, Flag("COMPETING_INTENTS", detail, refs[-1], refs[-MAX_INVOLVED:]))
    if ruleset.intent_conflict_policy == "block":
        return Resolution(None, "COMPETING_INTENTS", names, flags)
    return Resolution(names[-1], None, names, flags)


def ancestors(intents: Mapping[str, IntentRecord], intent_id: str) -> Iterator[IntentRecord]:
    """What stands above an intent, nearest first, the dead ones too; ends at an unknown one, or where it began."""
    seen = {intent_id}
    record = intents.get(intent_id)
    while record is not None:
        above = record.facts.parent_id
        if above is None or above in seen:
            return
        seen.add(above)
        record = intents.get(above)
        if record is not None:
            yield record


def root_of(intents: Mapping[str, IntentRecord], intent_id: str) -> str:
    """The id of the topmost intent above this one, or its own."""
    root = intent_id
    for record in ancestors(intents, intent_id):
        root = record.intent_id
    return root


def successor(intents: Mapping[str, IntentRecord], intent_id: str) -> IntentRecord | None:
    """The last live member of an intent's chain of supersessions, itself included; None if the chain ends dead."""
    record = intents.get(intent_id)
    while record is not None and not record.is_live:
        record = intents.get(record.superseded_by) if record.superseded_by is not None else None
    return record


def _candidates(state: ContextState) -> list[IntentRecord]:
    """The session's live intents that compete, in the order of their declarations."""
    live = [each for each in state.live_intents.values() if each.status == "live" and state.is_own_session(each)]
    if len(live) <= 1:
        return live
    intents = state.intents
    lines = {each.intent_id: list(ancestors(intents, each.intent_id)) for each in live}
    above = {record.intent_id for line in lines.values() for record in line}
    left = [each for each in live if each.intent_id not in above and not _is_set_aside(each, lines[each.intent_id], intents)]
    left.sort(key=lambda each: each.declared.key)
    return left


def _is_set_aside(record: IntentRecord, line: list[IntentRecord], intents: Mapping[str, IntentRecord]) -> bool:
    """Whether it belongs to a child that a fork above it passed over in favour of one that is still live."""
    own = {record.intent_id, *[each.intent_id for each in line]}
    for above in line:
        fork = above.fork
        if fork is None or fork.active is None or own.isdisjoint(fork.children):
            continue
        chosen = successor(intents, fork.active)
        if fork.active not in own and chosen is not None and chosen.intent_id not in own:
            return True
    return False


def _invalid_flags(state: ContextState) -> tuple[Flag, ...]:
    if not state.invalid:
        return ()
    found = list(state.invalid.values())
    newest = found[-1]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    detail = f"{newest.event.kind} in {newest.event.ref.entry_id}: {newest.problem}{more}; void it to go on without it"
    return (Flag("INVALID_LIFECYCLE", detail, newest.event.ref, tuple([each.event.ref for each in found[-MAX_INVOLVED:]])),)
