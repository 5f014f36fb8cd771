"""Turns the relation of a message to the active intent into intent events: the transition table, before and after a turn.

The executor suggests a relation, the table decides, and the result is a list of explicit events. This module writes nothing:
the caller appends the events to the ledger.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, cast

from kitchener.context.flags import Flag
from kitchener.context.fold.context_events import CLOSED_BY_MESSAGE, COMPLETED
from kitchener.context.fold.items import first_line
from kitchener.context.fold.lifecycle import IntentRecord
from kitchener.context.ruleset import Ruleset
from kitchener.ids import intent_id as intent_id_of
from kitchener.records import events
from kitchener.records.entries import (
    IntentAbandonedPayload,
    IntentClosedPayload,
    IntentCloser,
    IntentDeclaredPayload,
    IntentDeferredPayload,
    IntentForkedPayload,
    IntentPayload,
    IntentRelation,
    IntentReopenedPayload,
    IntentScope,
    IntentSupersededPayload,
    TransitionAction,
)
from kitchener.records.outputs import Classification

OBJECTIVE_CHARS: Final = 120
"""Characters of the message that become the objective of an intent if the classification suggests none."""
BRIDGE_OBJECTIVE: Final = "This conversation"

_SCOPES: Final = (events.SESSION_SCOPE, *events.SHARED_SCOPES)
_RELATIONS: Final[Mapping[str, IntentRelation]] = {
    "continue": "continue",
    "switch": "switch",
    "close": "close",
    "unclear": "unclear",
    "new": "switch",
    "supersede": "switch",
}


class IntentEvent(NamedTuple):
    """A life-cycle entry to write."""

    entry_type: str
    entity_id: str
    payload: IntentPayload


class SessionIntents(NamedTuple):
    """The session in which a transition happens."""

    session_id: str
    turn_id: str
    """The deciding turn; "": outside a turn."""
    intents: Mapping[str, IntentRecord]
    """`ContextState.intents`"""


class TransitionDecision(NamedTuple):
    """The effect of a message or a reply on the active intent."""

    action: TransitionAction
    """`SUPERSEDE` replaces the active intent by a new one, `REOPEN` by an earlier one; `KEEP` chooses one of several competing
    intents; `DEFER` leaves the session without an active intent."""
    events: tuple[IntentEvent, ...]
    """The entries to write, in this order."""
    flags: tuple[Flag, ...]
    """Conflicts that a person should look at."""
    reason: str
    """The rule that decided, for a reader."""
    intent_id: str | None
    """The intent of the turn; None: the turn has none."""

    @property
    def before_turn(self) -> tuple[IntentEvent, ...]:
        """The entries to write before the turn's projection."""
        return () if self.action in _AFTER_TURN else self.events

    @property
    def after_turn(self) -> tuple[IntentEvent, ...]:
        """The entries to write after the reply was verified, because a turn sees its intent to the end."""
        return self.events if self.action in _AFTER_TURN else ()


_AFTER_TURN: Final = ("CLOSE", "DEFER")


class Suggestion(NamedTuple):
    """What a classification in either spelling says about intents."""

    relation: IntentRelation
    why_unclear: str = ""
    """Why the relation is unclear; "": it is not."""
    objective: str | None = None
    prior_intent_id: str | None = None


def read_suggestion(classify_result: Classification, ruleset: Ruleset) -> Suggestion:
    """Reads a classification in either spelling. Without a relation, the suggestion is unclear.

    `intent_relation` is `continue`, `switch`, `close` or `unclear`, and `candidate_objective` is the objective. The other
    spelling is `intent: {action, scope, prior_intent_id}` with the actions `new`, `continue`, `supersede` and `close`, and the
    objective in `scope`. Of a field in both spellings, the first counts. A model wrote it, so each field may hold any value.
    Version 1 of the policy read no `scope`, and a field of the first spelling counted even if it was null.
    """
    nested = classify_result.get("intent")
    other: Mapping[str, object] = nested if isinstance(nested, Mapping) else {}
    if ruleset.policy_version == 1:
        said = classify_result.get("intent_relation", other.get("action"))
        prior = classify_result.get("prior_intent_id", other.get("prior_intent_id"))
        objective = _text(classify_result.get("candidate_objective"))
    else:
        said = _given(classify_result.get("intent_relation"), other.get("action"))
        prior = _given(classify_result.get("prior_intent_id"), other.get("prior_intent_id"))
        objective = _objective(classify_result.get("candidate_objective")) or _objective(other.get("scope"))
    relation = _RELATIONS.get(said) if isinstance(said, str) else None
    why = ""
    if relation is None:
        relation, why = "unclear", "the classification names no relation"
    elif relation == "unclear":
        why = "the classification says so"
    elif not _is_certain(classify_result.get("confidence", other.get("confidence", 1.0)), ruleset.intent_min_confidence):
        relation, why = "unclear", f"its confidence is below {ruleset.intent_min_confidence}"
    return Suggestion(relation, why, objective, prior if isinstance(prior, str) and prior else None)


def _given(first: object, other: object) -> object:
    return other if first is None else first


def _objective(value: object) -> str | None:
    """The objective in a field; None: it holds none. A model may also write a scope of an intent into `scope`."""
    text = _text(value)
    return text if text not in _SCOPES else None


def _text(value: object) -> str | None:
    return (value.strip() or None) if isinstance(value, str) else None


def _is_certain(confidence: object, least: float) -> bool:
    # The comparison is false for a NaN, which is not certain.
    return isinstance(confidence, int | float) and not isinstance(confidence, bool) and confidence >= least


def resolve_intent_transition(
    active_intent: str | None,
    classify_result: Classification,
    ruleset: Ruleset,
    *,
    message: str,
    session_intents: SessionIntents,
) -> TransitionDecision:
    """Decides the effect of a message on the active intent.

    Args:
        active_intent: id of the active intent; None: there is none
        classify_result: the output of the classify work order; {}: there is none
        ruleset: mode, least confidence and the policy for unclear relations
        message: the user's message
        session_intents: the session, the turn and all declared intents
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
        earlier = _resumable(session_intents, ruleset) if relation == "continue" else None
        if earlier is not None:
            return TransitionDecision("REOPEN", (reopened(earlier, "continue"),), (), f"continue {earlier}", earlier)
        return _declare(None, suggestion, message, session_intents, f"{relation}: no intent is active")
    if relation == "continue":
        return TransitionDecision("CONTINUE", (), (), "continue", active_intent)
    if relation == "close":
        closing = _closed_in_turn(active_intent, CLOSED_BY_MESSAGE, "classification", ruleset)
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
        # A model invented an undeclared id. Reasons are never sealed, so they must not contain a model's words.
        named = prior if prior in session.intents else "the intent that was named"
        return _declare(active, suggestion, message, session, f"switch; {named} {problem}")
    leaving = () if _is_shared(active, session) else (superseded(active, prior, "switch"),)
    return TransitionDecision("REOPEN", (reopened(prior, "switch"), *leaving), (), f"switch back to {prior}", prior)


def _cannot_reopen(prior: str, session: SessionIntents) -> str:
    record = session.intents.get(prior)
    if record is None:
        return "was never declared"
    if not record.is_own_of(session.session_id):
        return "is no intent of this session"
    return "is live" if record.status == "live" else ""


def _resumable(session: SessionIntents, ruleset: Ruleset) -> str | None:
    """The intent that a message continues if none is active: the one that changed last, if the policy lets it live again.

    It was deferred, or classification closed it and `continue_after_close` is `reopen`. Nothing else that ended comes back.
    """
    own = [each for each in session.intents.values() if each.is_declared_in(session.session_id)]
    newest = max(own, key=lambda each: each.last.key, default=None)
    if newest is None or newest.facts.is_shared:
        return None
    reopens = ruleset.continue_after_close == "reopen" and newest.closed_by == "classification"
    return newest.intent_id if newest.status == "deferred" or reopens else None


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
    made = (declared(session, new, objective),)
    if active is None or _is_shared(active, session):
        return TransitionDecision("DECLARE", made, (), reason, new)
    return TransitionDecision("SUPERSEDE", (*made, superseded(active, new, "switch")), (), reason, new)


def _is_shared(active: str, session: SessionIntents) -> bool:
    """Whether the active intent is shared. A message that leaves it ends nothing: other sessions may work under it."""
    record = session.intents.get(active)
    return record is not None and record.facts.is_shared


def with_scopes(made: Sequence[IntentEvent], intents: Mapping[str, IntentRecord]) -> list[IntentEvent]:
    """The events. Those about shared intents get the intent's scope, by which other sessions find their entries."""
    return [_with_scope(each, intents) for each in made]


def are_shared(made: Iterable[IntentEvent]) -> bool:
    """Whether any of these events, as `with_scopes` gives them, is about a shared intent."""
    return any(each.payload.get("scope", events.SESSION_SCOPE) != events.SESSION_SCOPE for each in made)


def _with_scope(event: IntentEvent, intents: Mapping[str, IntentRecord]) -> IntentEvent:
    known = intents.get(event.entity_id)
    scope = event.payload.get("scope", known.facts.scope if known is not None else events.SESSION_SCOPE)
    # A fork names the active child of its own session only.
    if scope == events.SESSION_SCOPE or event.entry_type == events.INTENT_FORKED:
        return event
    return event._replace(payload=cast("IntentPayload", {**event.payload, "scope": str(scope)}))


def resolve_after_turn(
    active_intent: str | None,
    synthesize_result: Mapping[str, object],
    ruleset: Ruleset,
    *,
    is_failed: bool,
    failures_before: int,
    intents: Mapping[str, IntentRecord],
    closing_tool: str | None = None,
) -> TransitionDecision:
    """Decides the effect of a verified turn on its intent; do not call it for a turn whose message closes the intent.

    After a success the intent continues. Repeated failures are flagged, and with `repeated_failure_policy = "defer"` the intent
    is also deferred, until a message continues it or somebody reopens it. A tool that may close the intent closes it, even if
    the reply failed, because it had its effect. What a reply says closes nothing; under version 1 of the policy,
    `completes_intent` did. In bridge mode no intent is closed or deferred, because it belongs to the whole session.

    Args:
        active_intent: the turn's intent; None: it has none
        synthesize_result: the accepted output; {}: there is none
        ruleset: mode, and the number of failures to flag or defer
        is_failed: whether the turn failed
        failures_before: number of failed turns of this intent directly before, `Attached.failures_in_row`
        intents: `ContextState.intents`
        closing_tool: a tool that succeeded in this turn and may close the intent by its declaration; None: no such tool
    """
    if active_intent is None:
        return TransitionDecision("NOOP", (), (), "no intent is active", None)
    if closing_tool is not None and ruleset.intent_mode == "classified":
        closing = _closed_in_turn(active_intent, f"completed by the tool {closing_tool}", "tool", ruleset)
        return TransitionDecision("CLOSE", (closing,), (), f"the tool {closing_tool} completes it", active_intent)
    if is_failed:
        failures = failures_before + 1
        record = intents.get(active_intent)
        refs = (record.declared.ref,) if record is not None else ()
        detail = f"{failures} turns of {active_intent} failed in a row"
        flag = Flag("REPEATED_FAILURE", detail, None, refs)
        if failures < ruleset.intent_max_failures:
            return TransitionDecision("CONTINUE", (), (), "the turn failed", active_intent)
        if ruleset.repeated_failure_policy == "defer" and ruleset.intent_mode == "classified":
            return TransitionDecision("DEFER", (deferred(active_intent, detail),), (flag,), detail, active_intent)
        return TransitionDecision("CONTINUE", (), (flag,), "the turn failed", active_intent)
    completes = ruleset.policy_version == 1 and synthesize_result.get("completes_intent") is True
    if completes and ruleset.intent_mode == "classified":
        closing = _closed_in_turn(active_intent, COMPLETED, "reply", ruleset)
        return TransitionDecision("CLOSE", (closing,), (), "the reply completes it", active_intent)
    return TransitionDecision("CONTINUE", (), (), "the turn succeeded", active_intent)


def _closed_in_turn(intent_id: str, outcome: str, by: IntentCloser, ruleset: Ruleset) -> IntentEvent:
    """`INTENT_CLOSED` of a turn. Version 1 of the policy did not record who closed an intent."""
    return closed(intent_id, outcome, by=by if ruleset.policy_version > 1 else None)


def next_intent_id(session: SessionIntents) -> str:
    """The first unused intent id of a session and turn."""
    number = 1
    while (found := intent_id_of(session.session_id, session.turn_id, number)) in session.intents:
        number += 1
    return found


# --- competing intents -----------------------------------------------------------------------------------------------------


def describe_conflict(competing: Sequence[str], intents: Mapping[str, IntentRecord]) -> str:
    """A reply that asks the user to choose between competing intents, numbered."""
    lines = [f"{n}. {first_line(intents[each].facts.objective)}" for n, each in enumerate(competing, 1)]
    return "\n".join(["Several threads are open. Which one shall we go on with? Answer with its number.", *lines])


def choose_thread(message: str, competing: Sequence[str], intents: Mapping[str, IntentRecord]) -> str | None:
    """The intent that a message names by number or objective; None: it names none, or more than one."""
    said = " ".join(message.split()).strip(".!#) ").casefold()
    # ASCII digits only, because Python accepts other numerals that nobody types as an answer.
    if said.isascii() and said.isdigit() and len(said) <= len(str(len(competing))):
        number = int(said)
        return competing[number - 1] if 1 <= number <= len(competing) else None
    named = [
        each
        for each in competing
        if (objective := " ".join(intents[each].facts.objective.split()).casefold()) and _names(said, objective)
    ]
    return named[0] if len(named) == 1 else None


def keep_intent(keep: str, competing: Sequence[str]) -> tuple[IntentEvent, ...]:
    """The entries that resolve a conflict: the kept intent supersedes all others."""
    return tuple([superseded(each, keep, "settled in favour of another") for each in competing if each != keep])


def _names(said: str, objective: str) -> bool:
    return said == objective or objective in said


# --- life-cycle entries ------------------------------------------------------------------------------------------------------


def bridge_declaration(
    session: SessionIntents, *, adopts_turns: bool = False, parent_intent_id: str | None = None
) -> IntentEvent:
    """The one intent of a session in bridge mode.

    Args:
        session: the session
        adopts_turns: the session's turns without an intent belong to this one; for turns that ran while the Authority was off
        parent_intent_id: the intent from before, which stays in view; None: there is none
    """
    new = next_intent_id(session)
    return declared(session, new, BRIDGE_OBJECTIVE, parent_intent_id=parent_intent_id, adopts_turns=adopts_turns)


def declared(
    session: SessionIntents,
    intent_id: str,
    objective: str,
    *,
    scope: IntentScope = events.SESSION_SCOPE,
    parent_intent_id: str | None = None,
    targets: Sequence[str] = (),
    created_by: str = "HO2",
    adopts_turns: bool = False,
) -> IntentEvent:
    """`INTENT_DECLARED`. Take the id from `next_intent_id`."""
    payload: IntentDeclaredPayload = {
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
    return IntentEvent(events.INTENT_DECLARED, intent_id, payload)


def superseded(intent_id: str, by: str, reason: str) -> IntentEvent:
    """`INTENT_SUPERSEDED`: the intent is replaced by the intent `by`."""
    payload: IntentSupersededPayload = {"intent_id": intent_id, "superseded_by_intent_id": by, "reason": reason}
    return IntentEvent(events.INTENT_SUPERSEDED, intent_id, payload)


def reopened(intent_id: str, reason: str) -> IntentEvent:
    """`INTENT_REOPENED`: the intent is live again."""
    payload: IntentReopenedPayload = {"intent_id": intent_id, "reason": reason}
    return IntentEvent(events.INTENT_REOPENED, intent_id, payload)


def closed(intent_id: str, outcome: str, reason: str | None = None, *, by: IntentCloser | None) -> IntentEvent:
    """`INTENT_CLOSED`: the intent has ended, with an outcome."""
    payload: IntentClosedPayload = {"intent_id": intent_id, "outcome": outcome}
    if reason is not None:
        payload["reason"] = reason
    if by is not None:
        payload["closed_by"] = by
    return IntentEvent(events.INTENT_CLOSED, intent_id, payload)


def abandoned(intent_id: str, reason: str) -> IntentEvent:
    """`INTENT_ABANDONED`: the intent is given up without an outcome."""
    payload: IntentAbandonedPayload = {"intent_id": intent_id, "reason": reason}
    return IntentEvent(events.INTENT_ABANDONED, intent_id, payload)


def deferred(intent_id: str, reason: str) -> IntentEvent:
    """`INTENT_DEFERRED`: the intent waits until a message continues it."""
    payload: IntentDeferredPayload = {"intent_id": intent_id, "reason": reason}
    return IntentEvent(events.INTENT_DEFERRED, intent_id, payload)


def forked(intent_id: str, children: Sequence[str], active: str | None, reason: str) -> IntentEvent:
    """`INTENT_FORKED`; the children are declared by entries of their own before it."""
    payload: IntentForkedPayload = {"parent_intent_id": intent_id, "child_intent_ids": list(children), "reason": reason}
    if active is not None:
        payload["active_child_intent_id"] = active
    return IntentEvent(events.INTENT_FORKED, intent_id, payload)
