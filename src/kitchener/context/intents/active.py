"""Finds the active intent of a session.

An agent has at most one active intent per session. The candidates are the session's own live intents. An ancestor of a
candidate does not compete with it, and a fork may name the child that continues. If several candidates remain, the ruleset
decides whether to ask the user or to take the newest. Where the ruleset or an inspection says so, the shared intents that a
session declared are its candidates while it has no live intent of its own. `transitions.py` decides how a message changes it.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from kitchener.context.flags import Flag
from kitchener.context.fold.lifecycle import IntentRecord
from kitchener.context.fold.state import ContextState
from kitchener.context.ruleset import Ruleset

MAX_INVOLVED = 20
"""A flag names at most so many entries, the newest."""


class Resolution(NamedTuple):
    """The active intent, and any conflicts."""

    active: str | None
    """Id of the active intent; None: there is none, or a conflict blocks the session."""
    blocked_by: Literal["INVALID_LIFECYCLE", "COMPETING_INTENTS"] | None = None
    """Why nothing may be projected; None: a projection is allowed."""
    competing: tuple[str, ...] = ()
    """Live intents of which none supersedes the others, in the order of their declarations."""
    flags: tuple[Flag, ...] = ()
    """Conflicts that a person should look at."""


def resolve_active(
    state: ContextState, ruleset: Ruleset, *, intent_id: str | None = None, with_shared: bool = False
) -> Resolution:
    """The active intent of the next turn.

    Args:
        state: the session's state
        ruleset: decides about conflicts and invalid events
        intent_id: use this intent if it is live, unless something blocks the session; only for inspecting. None: resolve it
        with_shared: take the shared intents that this session declared if no SESSION intent is live, whatever the ruleset says;
            only for inspecting
    """
    flags = _invalid_flags(state)
    if flags and ruleset.invalid_lifecycle_policy == "block":
        return Resolution(None, "INVALID_LIFECYCLE", (), flags)
    candidates = _candidates(state, with_shared=with_shared or ruleset.shared_intent_policy == "active")
    chosen = intent_id if intent_id in state.live_intents else None
    if len(candidates) <= 1:
        active = chosen if intent_id is not None else candidates[0].intent_id if candidates else None
        return Resolution(active, None, (), flags)
    names = tuple([each.intent_id for each in candidates])
    refs = tuple([each.declared.ref for each in candidates])
    detail = f"{len(names)} intents are live and none gave way: {', '.join(names)}; keep one of them"
    flags = (*flags, Flag("COMPETING_INTENTS", detail, refs[-1], refs[-MAX_INVOLVED:]))
    if ruleset.intent_conflict_policy == "block":
        return Resolution(None, "COMPETING_INTENTS", names, flags)
    return Resolution(names[-1] if intent_id is None else chosen, None, names, flags)


def ancestors(intents: Mapping[str, IntentRecord], intent_id: str) -> Iterator[IntentRecord]:
    """The ancestors of an intent, nearest first, including ended ones; stops at an unknown intent or a cycle."""
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


def successor(intents: Mapping[str, IntentRecord], intent_id: str) -> IntentRecord | None:
    """The live intent at the end of an intent's chain of supersessions, which may be itself; None: the last one has ended."""
    record = intents.get(intent_id)
    while record is not None and not record.is_live:
        record = intents.get(record.superseded_by) if record.superseded_by is not None else None
    return record


def _candidates(state: ContextState, *, with_shared: bool) -> list[IntentRecord]:
    """The session's competing live intents, in the order of their declarations."""
    live = [each for each in state.live_intents.values() if each.status == "live" and each.is_own_of(state.session_id)]
    if with_shared and not live:
        live = [each for each in state.live_intents.values() if each.status == "live" and each.is_declared_in(state.session_id)]
    if len(live) <= 1:
        return live
    intents = state.intents
    parents = {each.intent_id: list(ancestors(intents, each.intent_id)) for each in live}
    above = {record.intent_id for line in parents.values() for record in line}
    left = [each for each in live if each.intent_id not in above and not _lost_fork(each, parents[each.intent_id], intents)]
    left.sort(key=lambda each: each.declared.key)
    return left


def _lost_fork(record: IntentRecord, parents: list[IntentRecord], intents: Mapping[str, IntentRecord]) -> bool:
    """Whether a fork among the ancestors chose another child, which is still live."""
    own = {record.intent_id, *[each.intent_id for each in parents]}
    for above in parents:
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
