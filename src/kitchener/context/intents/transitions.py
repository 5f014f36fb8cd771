"""Turns the relation of a message to the active intent into intent events: the transition table, before and after a turn.

The executor suggests a relation, the table decides, and the result is a list of explicit events. This module writes nothing:
the caller appends the events to the ledger.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from kitchener.context.flags import Flag
from kitchener.context.fold import events as ev
from kitchener.context.fold.lifecycle import IntentRecord
from kitchener.context.ruleset import Ruleset
from kitchener.ids import intent_id as intent_id_of

Scope = Literal["SESSION", "ARTIFACT", "PROJECT", "GLOBAL"]
Relation = Literal["continue", "switch", "close", "unclear"]
Action = Literal["DECLARE", "CONTINUE", "SUPERSEDE", "REOPEN", "CLOSE", "NOOP", "ASK", "KEEP"]

OBJECTIVE_CHARS: Final = 120
"""Of the message, as the objective of an intent for which nothing better was suggested."""
BRIDGE_OBJECTIVE: Final = "This conversation"

_RELATIONS: Final[Mapping[str, Relation]] = {
    "continue": "continue",
    "switch": "switch",
    "close": "close",
    "unclear": "unclear",
    "new": "switch",
    "supersede": "switch",
}


class IntentEvent(NamedTuple):
    """A life-cycle entry that is to be written."""

    entry_type: str
    entity_id: str
    payload: dict[str, Any]


class SessionIntents(NamedTuple):
    """What a transition has to know of its session."""

    session_id: str
    turn_id: str
    """The turn that decides; "" outside a turn."""
    intents: Mapping[str, IntentRecord]
    """`ContextState.intents`"""


class TransitionDecision(NamedTuple):
    """What becomes of the active intent."""

    action: Action
    """`SUPERSEDE` declares a new intent in place of the active one, `REOPEN` reopens an earlier one in its place, `KEEP`
    settles which of several goes on."""
    events: tuple[IntentEvent, ...]
    """What to write, in this order."""
    flags: tuple[Flag, ...]
    """What somebody should look at."""
    reason: str
    """Which rule decided, for a reader."""
    intent_id: str | None
    """The intent that the turn serves and is recorded under."""

    @property
    def before_turn(self) -> tuple[IntentEvent, ...]:
        """Events to write before the turn is projected."""
        return () if self.action == "CLOSE" else self.events

    @property
    def after_turn(self) -> tuple[IntentEvent, ...]:
        """Events to write once the reply is verified: a closing turn still sees its intent."""
        return self.events if self.action == "CLOSE" else ()


class Suggestion(NamedTuple):
    """What a classification says about intents, in one spelling."""

    relation: Relation
    why_unclear: str = ""
    objective: str | None = None
    prior_intent_id: str | None = None


def read_suggestion(classify_result: Mapping[str, Any], ruleset: Ruleset) -> Suggestion:
    """What a classification suggests. Both spellings are read, and a classifier that says nothing of intents is unclear.

    `intent_relation` is `continue`, `switch`, `close` or `unclear`; the other spelling is `intent: {action, prior_intent_id}`
    with the actions `new`, `continue`, `supersede` and `close`.
    """
    nested = classify_result.get("intent")
    other: Mapping[str, Any] = nested if isinstance(nested, Mapping) else {}
    said = classify_result.get("intent_relation", other.get("action"))
    objective = classify_result.get("candidate_objective")
    objective = objective.strip() if isinstance(objective, str) else ""
    prior = classify_result.get("prior_intent_id", other.get("prior_intent_id"))
    relation = _RELATIONS.get(said) if isinstance(said, str) else None
    why = ""
    if relation is None:
        relation, why = "unclear", "the classification names no relation"
    elif relation == "unclear":
        why = "the classification says so"
    elif not _is_certain(classify_result.get("confidence", other.get("confidence", 1.0)), ruleset.intent_min_confidence):
        relation, why = "unclear", f"its confidence is below {ruleset.intent_min_confidence}"
    return Suggestion(relation, why, objective or None, prior if isinstance(prior, str) and prior else None)


def _is_certain(confidence: Any, least: float) -> bool:
    # A NaN is not certain, which is why it is asked this way round.
    return isinstance(confidence, int | float) and not isinstance(confidence, bool) and confidence >= least


def resolve_intent_transition(
    active_intent: str | None,
    classify_result: Mapping[str, Any],
    ruleset: Ruleset,
    *,
    message: str,
    session_intents: SessionIntents,
) -> TransitionDecision:
    """What a message makes of the active intent.

    Args:
        active_intent: its id, or None
        classify_result: the classify work order's output; {} where nothing could classify
        ruleset: mode, confidence and what to do when it is unclear
        message: the user's message
        session_intents: session, turn and the intents that were declared so far
    """
    suggestion = read_suggestion(classify_result, ruleset)
    if ruleset.intent_mode == "bridge":
        if active_intent is not None:
            return TransitionDecision("CONTINUE", (), (), "bridge mode: one intent per session", active_intent)
        return _declare(None, suggestion, message, session_intents, "bridge mode: the session has no live intent")
    relation = suggestion.relation
    if active_intent is None:
        if relation == "close":
            return TransitionDecision("NOOP", (), (), "close: no intent is active", None)
        return _declare(None, suggestion, message, session_intents, f"{relation}: no intent is active")
    if relation == "continue":
        return TransitionDecision("CONTINUE", (), (), "continue", active_intent)
    if relation == "close":
        closing = closed(active_intent, "closed by the user's message")
        return TransitionDecision("CLOSE", (closing,), (), "close", active_intent)
    if relation == "switch":
        return _switch(active_intent, suggestion, message, session_intents)
    return _unclear(active_intent, suggestion, ruleset, message, session_intents)


def _switch(active: str, suggestion: Suggestion, message: str, session: SessionIntents) -> TransitionDecision:
    prior = suggestion.prior_intent_id
    if prior is None:
        return _declare(active, suggestion, message, session, "switch")
    problem = _cannot_reopen(prior, session)
    if problem:
        # A name that nobody declared is a model's own words, and those stand in no reason: reasons are never sealed.
        named = prior if prior in session.intents else "the intent that was named"
        return _declare(active, suggestion, message, session, f"switch; {named} {problem}")
    events = (reopened(prior, "switch"), superseded(active, prior, "switch"))
    return TransitionDecision("REOPEN", events, (), f"switch back to {prior}", prior)


def _cannot_reopen(prior: str, session: SessionIntents) -> str:
    record = session.intents.get(prior)
    if record is None:
        return "was never declared"
    if record.facts.scope != "SESSION" or record.facts.session_id not in (None, session.session_id):
        return "is no intent of this session"
    return "is live" if record.is_live else ""


def _unclear(
    active: str, suggestion: Suggestion, ruleset: Ruleset, message: str, session: SessionIntents
) -> TransitionDecision:
    policy, why = ruleset.unclear_policy, f"unclear: {suggestion.why_unclear}"
    if policy == "declare":
        return _declare(active, suggestion, message, session, why)
    if policy == "ask":
        return TransitionDecision("ASK", (), (), why, active)
    record = session.intents.get(active)
    refs = (record.declared.ref,) if record is not None else ()
    flag = Flag("UNCLEAR_INTENT", f"{why}; the turn stays with {active}", None, refs)
    return TransitionDecision("CONTINUE", (), (flag,) if policy == "continue_and_flag" else (), why, active)


def _declare(
    active: str | None, suggestion: Suggestion, message: str, session: SessionIntents, reason: str
) -> TransitionDecision:
    new = next_intent_id(session)
    objective = suggestion.objective or message.strip()[:OBJECTIVE_CHARS]
    events = [declared(session, new, objective)]
    if active is not None:
        events.append(superseded(active, new, "switch"))
    return TransitionDecision("DECLARE" if active is None else "SUPERSEDE", tuple(events), (), reason, new)


def resolve_after_turn(
    active_intent: str | None,
    synthesize_result: Mapping[str, Any],
    ruleset: Ruleset,
    *,
    is_failed: bool,
    failures_before: int,
    intents: Mapping[str, IntentRecord],
) -> TransitionDecision:
    """What a verified turn makes of its intent; ask it for turns that did not decide to close it already.

    Success keeps it. Failures in a row are flagged. A reply that completes it closes it, but in bridge mode, where the
    intent is the session's and a reply cannot end that.

    Args:
        active_intent: the intent that the turn served
        synthesize_result: the accepted output; {} where there is none
        ruleset: how many failures are too many
        is_failed: whether the turn failed
        failures_before: failed turns of this intent directly before it, `Attached.failures_in_row`
        intents: `ContextState.intents`
    """
    if active_intent is None:
        return TransitionDecision("NOOP", (), (), "no intent is active", None)
    if is_failed:
        failures = failures_before + 1
        record = intents.get(active_intent)
        refs = (record.declared.ref,) if record is not None else ()
        detail = f"{failures} turns of {active_intent} failed in a row"
        flag = Flag("REPEATED_FAILURE", detail, None, refs)
        flags = (flag,) if failures >= ruleset.intent_max_failures else ()
        return TransitionDecision("CONTINUE", (), flags, "the turn failed", active_intent)
    if synthesize_result.get("completes_intent") is True and ruleset.intent_mode == "classified":
        closing = closed(active_intent, "completed")
        return TransitionDecision("CLOSE", (closing,), (), "the reply completes it", active_intent)
    return TransitionDecision("CONTINUE", (), (), "the turn succeeded", active_intent)


def next_intent_id(session: SessionIntents) -> str:
    """The first id of this session and turn that no intent has yet."""
    number = 1
    while (found := intent_id_of(session.session_id, session.turn_id, number)) in session.intents:
        number += 1
    return found


# --- life-cycle entries ------------------------------------------------------------------------------------------------------


def bridge_declaration(
    session: SessionIntents, *, adopts_turns: bool = False, parent_intent_id: str | None = None
) -> IntentEvent:
    """The one intent of a session in bridge mode.

    Args:
        session: the session
        adopts_turns: for a session that is older than the Context Authority, or was held without it for a while: its turns that
            have no intent belong to this one
        parent_intent_id: the intent of the time before, which stays in view
    """
    new = next_intent_id(session)
    return declared(session, new, BRIDGE_OBJECTIVE, parent_intent_id=parent_intent_id, adopts_turns=adopts_turns)


def declared(
    session: SessionIntents,
    intent_id: str,
    objective: str,
    *,
    scope: str = "SESSION",
    parent_intent_id: str | None = None,
    targets: Sequence[str] = (),
    created_by: str = "HO2",
    adopts_turns: bool = False,
) -> IntentEvent:
    """`INTENT_DECLARED`. Take the id from `next_intent_id`."""
    payload: dict[str, Any] = {
        "session_id": session.session_id,
        "intent_id": intent_id,
        "scope": scope,
        "objective": objective,
        "targets": list(targets),
        "created_by": created_by,
    }
    if parent_intent_id is not None:
        payload["parent_intent_id"] = parent_intent_id
    if adopts_turns:
        payload["adopts_turns"] = True
    return IntentEvent(ev.INTENT_DECLARED, intent_id, payload)


def superseded(intent_id: str, by: str, reason: str) -> IntentEvent:
    """`INTENT_SUPERSEDED`"""
    payload = {"intent_id": intent_id, "superseded_by_intent_id": by, "reason": reason}
    return IntentEvent(ev.INTENT_SUPERSEDED, intent_id, payload)


def reopened(intent_id: str, reason: str) -> IntentEvent:
    """`INTENT_REOPENED`"""
    return IntentEvent(ev.INTENT_REOPENED, intent_id, {"intent_id": intent_id, "reason": reason})


def closed(intent_id: str, outcome: str, reason: str | None = None) -> IntentEvent:
    """`INTENT_CLOSED`"""
    payload = {"intent_id": intent_id, "outcome": outcome}
    return IntentEvent(ev.INTENT_CLOSED, intent_id, payload if reason is None else {**payload, "reason": reason})


def abandoned(intent_id: str, reason: str) -> IntentEvent:
    """`INTENT_ABANDONED`"""
    return IntentEvent(ev.INTENT_ABANDONED, intent_id, {"intent_id": intent_id, "reason": reason})


def forked(intent_id: str, children: Sequence[str], active: str | None, reason: str) -> IntentEvent:
    """`INTENT_FORKED`; the children are declared by entries of their own before it."""
    payload: dict[str, Any] = {"parent_intent_id": intent_id, "child_intent_ids": list(children), "reason": reason}
    if active is not None:
        payload["active_child_intent_id"] = active
    return IntentEvent(ev.INTENT_FORKED, intent_id, payload)
