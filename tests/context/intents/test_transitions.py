"""How a classification is read, which intent a message leads to, and what becomes of it after the turn."""

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.context import (
    SessionIntents,
    TransitionDecision,
    bridge_declaration,
    choose_thread,
    describe_conflict,
    keep_intent,
    resolve_active,
    resolve_after_turn,
    resolve_intent_transition,
)
from kitchener.context.fold.context_events import Ended
from kitchener.context.intents.active import ancestors, successor
from kitchener.context.intents.transitions import (
    IntentEvent,
    abandoned,
    closed,
    forked,
    read_suggestion,
    reopened,
    superseded,
)
from kitchener.context.ruleset import Ruleset
from kitchener.ids import intent_id
from kitchener.records.entries import IntentClosedPayload, IntentDeclaredPayload, IntentRelation, payload_as
from kitchener.records.outputs import Classification
from tests.context.history import SESSION, History

TURN = "T-00000001-000007"
CLASSIFIED = Ruleset(admission="newest_first", intent_mode="classified")
NEW = intent_id(SESSION, TURN, 1)


def session_of(history: History) -> SessionIntents:
    return SessionIntents(SESSION, TURN, history.state().intents)


def decide(history: History, said: Any, ruleset: Ruleset = CLASSIFIED, message: str = "hi") -> TransitionDecision:
    active = history.resolve(ruleset).active
    decision = resolve_intent_transition(active, said, ruleset, message=message, session_intents=session_of(history))
    history.write(decision.events)
    assert not history.state().invalid, "a decision is always a legal life"
    return decision


def one_intent() -> History:
    history = History()
    history.declare("INT-1")
    return history


@pytest.mark.parametrize(
    ("said", "action"),
    [
        ({"intent_relation": "continue"}, "CONTINUE"),
        ({"intent_relation": "switch", "confidence": 1}, "SUPERSEDE"),
        ({"intent": {"action": "continue"}}, "CONTINUE"),
        ({"intent": {"action": "new", "scope": "PROJECT"}}, "SUPERSEDE"),
        ({"intent": {"action": "supersede", "confidence": 0.7}}, "SUPERSEDE"),
        ({"intent": {"action": "close"}}, "CLOSE"),
        ({"intent_relation": "close", "intent": {"action": "new"}}, "CLOSE"),
    ],
)
def test_both_spellings_of_a_classification_are_read(said: dict[str, Any], action: str) -> None:
    decision = decide(one_intent(), said)
    assert (decision.action, decision.flags) == (action, ())


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"speech_act": "question"},
        {"intent_relation": "sideways"},
        {"intent_relation": ["switch"]},
        {"intent": "new"},
        {"intent_relation": "switch", "confidence": 0.59},
        {"intent_relation": "switch", "confidence": "high"},
        {"intent_relation": "switch", "confidence": float("nan")},
        {"intent_relation": "close", "confidence": True},
    ],
)
def test_what_is_not_clear_changes_nothing_and_is_flagged(said: dict[str, Any]) -> None:
    history = one_intent()
    decision = decide(history, said)
    assert (decision.action, decision.events, decision.intent_id) == ("CONTINUE", (), "INT-1")
    assert [(flag.kind, flag.involved_refs) for flag in decision.flags] == [("UNCLEAR_INTENT", (history.events[0].ref,))]


def test_the_objective_is_the_suggested_one_or_the_beginning_of_the_message() -> None:
    suggested = decide(History(), {"intent_relation": "switch", "candidate_objective": " find it "})
    assert payload_as(IntentDeclaredPayload, suggested.events[0].payload)["objective"] == "find it"
    own = decide(History(), {"intent_relation": "switch", "candidate_objective": ""}, message="x" * 500)
    declared = payload_as(IntentDeclaredPayload, own.events[0].payload)
    assert (declared["objective"], declared["scope"]) == ("x" * 120, "SESSION")


@pytest.mark.parametrize(
    ("said", "objective"),
    [
        ({"intent": {"action": "new", "scope": " find it "}}, "find it"),
        (
            {"intent": {"action": "supersede", "scope": "find it"}, "intent_relation": None, "candidate_objective": None},
            "find it",
        ),
        ({"intent": {"action": "new", "scope": "find it"}, "candidate_objective": " "}, "find it"),
        ({"intent": {"action": "new", "scope": "find it"}, "candidate_objective": "lose it"}, "lose it"),
        ({"intent": {"action": "new", "scope": "PROJECT"}}, "what they said"),
        ({"intent": {"action": "new", "scope": ["find it"]}}, "what they said"),
        ({"intent": {"action": "new"}}, "what they said"),
    ],
)
def test_the_objective_is_read_in_either_spelling(said: dict[str, Any], objective: str) -> None:
    """`intent.scope` is the objective, unless it names a scope."""
    decision = decide(one_intent(), said, message="what they said")
    declared = payload_as(IntentDeclaredPayload, decision.events[0].payload)
    assert (decision.action, declared["objective"]) == ("SUPERSEDE", objective)


def test_an_earlier_intent_is_reopened_in_either_spelling() -> None:
    for prior in ({"prior_intent_id": "INT-1"}, {"prior_intent_id": None, "intent": {"prior_intent_id": "INT-1"}}):
        history = History()
        history.declare("INT-1")
        history.close("INT-1")
        history.declare("INT-2")
        decision = decide(history, {"intent_relation": "switch", **prior})
        assert (decision.action, decision.intent_id) == ("REOPEN", "INT-1")


@pytest.mark.parametrize("prior", ["INT-2", "INT-9", "INT-P", "INT-other"])
def test_only_a_dead_intent_of_this_session_is_reopened(prior: str) -> None:
    history = History()
    history.declare("INT-1")
    history.declare("INT-P", scope="PROJECT")
    history.close("INT-P")
    history.declare("INT-other", session_id="SES-00000002")
    history.close("INT-other")
    history.declare("INT-2", "INT-1")  # INT-1 stands above it, so INT-2 is the active one
    decision = decide(history, {"intent_relation": "switch", "prior_intent_id": prior})
    assert (decision.action, decision.intent_id) == ("SUPERSEDE", NEW)
    assert ("never declared" if prior == "INT-9" else prior) in decision.reason
    assert "INT-9" not in decision.reason  # nobody declared it: a model's own words stay out of what is never sealed


def test_the_id_of_an_intent_follows_from_session_turn_and_ordinal() -> None:
    assert "INT-" + hashlib.sha256(f"{SESSION}|{TURN}|1".encode()).hexdigest()[:16] == NEW
    outside = resolve_intent_transition(
        None, {}, CLASSIFIED, message="hi", session_intents=SessionIntents(SESSION, "", {})
    ).intent_id
    assert outside == "INT-" + hashlib.sha256(f"{SESSION}||1".encode()).hexdigest()[:16]


def test_an_id_that_is_taken_is_not_given_again() -> None:
    history = History()
    history.declare(NEW)
    decision = decide(history, {"intent_relation": "switch"})
    assert decision.intent_id == intent_id(SESSION, TURN, 2)


def test_in_bridge_mode_a_session_keeps_its_one_intent() -> None:
    bridge = Ruleset(admission="newest_first")
    history = History()
    history.write([bridge_declaration(SessionIntents(SESSION, "", {}))])
    bridged = intent_id(SESSION, "", 1)
    for said in ({"intent_relation": "switch"}, {"intent_relation": "close"}, {}):
        decision = decide(history, said, bridge)
        assert (decision.action, decision.events, decision.flags, decision.intent_id) == ("CONTINUE", (), (), bridged)
    history.close(bridged)
    assert decide(history, {"intent_relation": "close"}, bridge).action == "DECLARE"


def after(
    history: History, output: dict[str, Any], ruleset: Ruleset = CLASSIFIED, *, failed: bool = False
) -> TransitionDecision:
    state = history.state()
    return resolve_after_turn(
        "INT-1",
        output,
        ruleset,
        is_failed=failed,
        failures_before=state.attached("INT-1").failures_in_row,
        intents=state.intents,
    )


FIRST_VERSION = Ruleset(intent_mode="classified", admission="newest_first", policy_version=1)


def test_a_good_turn_keeps_its_intent_whatever_its_reply_says() -> None:
    history = one_intent()
    for output in ({"response_text": "x"}, {"completes_intent": True}):
        assert after(history, output).action == "CONTINUE"
    closing = after(history, {"completes_intent": True}, FIRST_VERSION)
    assert (closing.action, closing.before_turn) == ("CLOSE", ())
    history.write(closing.after_turn)
    assert history.resolve().active is None
    assert history.state().intents["INT-1"].closed_by == "reply"
    none = resolve_after_turn(None, {"completes_intent": True}, CLASSIFIED, is_failed=False, failures_before=0, intents={})
    assert none.action == "NOOP"


def test_a_tool_closes_the_intent_even_if_the_reply_failed() -> None:
    """It had its effect. In bridge mode nothing closes the one intent of a session."""
    history = one_intent()
    intents = history.state().intents
    for is_failed in (False, True):
        found = resolve_after_turn(
            "INT-1", {}, CLASSIFIED, is_failed=is_failed, failures_before=0, intents=intents, closing_tool="book"
        )
        assert [payload_as(IntentClosedPayload, each.payload)["closed_by"] for each in found.after_turn] == ["tool"]
    bridge = Ruleset(admission="newest_first")
    found = resolve_after_turn("INT-1", {}, bridge, is_failed=False, failures_before=0, intents=intents, closing_tool="book")
    assert found.action == "CONTINUE"


REOPENING = Ruleset(intent_mode="classified", admission="newest_first", continue_after_close="reopen")


def decided(history: History, ruleset: Ruleset, relation: IntentRelation = "continue") -> tuple[str, str | None]:
    found = resolve_intent_transition(
        history.resolve().active,
        {"intent_relation": relation},
        ruleset,
        message="go on",
        session_intents=SessionIntents(SESSION, "T-00000001-000009", history.state().intents),
    )
    return found.action, found.intent_id


def test_what_classification_closed_goes_on_where_the_ruleset_says_so() -> None:
    history = one_intent()
    closing = resolve_intent_transition(
        "INT-1",
        {"intent_relation": "close"},
        CLASSIFIED,
        message="thanks",
        session_intents=SessionIntents(SESSION, "T-00000001-000001", history.state().intents),
    )
    history.write(closing.events)
    assert history.state().intents["INT-1"].closed_by == "classification"
    assert decided(history, REOPENING) == ("REOPEN", "INT-1")
    assert decided(history, CLASSIFIED)[0] == "DECLARE"
    for relation in ("switch", "unclear"):
        assert decided(history, REOPENING, relation)[0] == "DECLARE"


@pytest.mark.parametrize(
    "ending",
    [
        closed("INT-1", "done", "closed by the user", by="user"),
        closed("INT-1", "completed by the tool book", by="tool"),
        closed("INT-1", "completed", by=None),
        closed("INT-1", "whatever another program says", by=None),
        abandoned("INT-1", "no time"),
        IntentEvent("INTENT_RETIRED", "INT-1", {"intent_id": "INT-1", "reason": "old"}),
        superseded("INT-1", "INT-2", "switch"),
    ],
    ids=lambda each: f"{each.entry_type} {each.payload.get('outcome', '')}",
)
def test_what_ended_in_another_way_stays_ended(ending: IntentEvent) -> None:
    history = one_intent()
    history.declare("INT-2")
    history.write([abandoned("INT-2", "first"), ending] if ending.payload.get("superseded_by_intent_id") is None else [ending])
    if ending.payload.get("superseded_by_intent_id") is not None:
        history.write([closed("INT-2", "done", "closed by the user", by="user")])
    assert decided(history, REOPENING)[0] == "DECLARE"


def test_version_1_read_no_scope_and_let_null_fields_hide_others() -> None:
    said: Classification = {"intent_relation": None, "intent": {"action": "supersede", "scope": "ponds"}}
    assert read_suggestion(said, CLASSIFIED)[::2] == ("switch", "ponds")
    assert read_suggestion(said, FIRST_VERSION)[::2] == ("unclear", None)


@pytest.mark.parametrize(
    ("payload", "closer"),
    [
        ({"outcome": "completed", "turn_id": "T"}, "reply"),
        ({"outcome": "closed by the user's message", "turn_id": "T"}, "classification"),
        ({"outcome": "closed by the user's message"}, "classification"),
        ({"outcome": "completed", "reason": "closed by the user"}, "user"),
        ({"outcome": "completed", "closed_by": "tool"}, "tool"),
        ({"outcome": "completed", "closed_by": 7}, None),
        ({"outcome": {"$sealed": "x"}, "turn_id": "T"}, None),
    ],
)
def test_old_records_tell_who_closed_an_intent(payload: dict[str, Any], closer: str | None) -> None:
    history = one_intent()
    history.add("INTENT_CLOSED", "INT-1", **payload)
    assert history.state().intents["INT-1"].closed_by == closer


def test_failed_turns_in_a_row_are_flagged() -> None:
    history = one_intent()
    kinds = []
    for n in range(4):
        kinds.append([flag.kind for flag in after(history, {}, failed=True).flags])
        history.turn(f"T-{n}", "INT-1", ok=False)
    assert kinds == [[], [], ["REPEATED_FAILURE"], ["REPEATED_FAILURE"]]
    history.turn("T-9", "INT-1")
    assert after(history, {}, failed=True).flags == ()


# --- conflicts ---------------------------------------------------------------------------------------------------------------


def test_an_intent_can_be_abandoned_with_a_reason_and_closed_with_an_outcome() -> None:
    history = one_intent()
    history.write([closed("INT-1", "done", "as asked", by="user"), reopened("INT-1", "not yet"), abandoned("INT-1", "no time")])
    record = history.state().intents["INT-1"]
    assert (record.status, record.last.facts) == ("abandoned", Ended("no time"))
    assert history.events[1].facts == Ended("as asked", "user")


def test_what_stands_above_an_intent_does_not_compete_with_it() -> None:
    history = History()
    history.declare("INT-1")
    history.declare("INT-2", "INT-1")
    history.declare("INT-3", "INT-2")
    history.close("INT-2")
    assert history.resolve().active == "INT-3"
    assert [each.intent_id for each in ancestors(history.state().intents, "INT-3")] == ["INT-2", "INT-1"]


def test_intents_of_the_namespace_and_of_other_sessions_do_not_compete() -> None:
    history = History()
    history.declare("INT-1")
    history.declare("INT-2", scope="PROJECT")
    history.declare("INT-3", session_id="SES-00000002")
    assert history.resolve() == (("INT-1", None, (), ()))
    history.close("INT-1")
    assert history.resolve().active is None


def test_an_intent_that_was_put_off_does_not_compete() -> None:
    history = History()
    history.declare("INT-1")
    history.declare("INT-2")
    history.add("INTENT_DEFERRED", "INT-2", reason="later")
    assert history.resolve().active == "INT-1"


def forks(active: str | None) -> History:
    history = History()
    history.declare("INT-P")
    history.declare("INT-1", "INT-P")
    history.declare("INT-2", "INT-P")
    history.write([forked("INT-P", ["INT-1", "INT-2"], active, "two ways")])
    return history


def test_children_of_a_fork_compete_unless_it_names_the_active_one() -> None:
    undecided = forks(None).resolve()
    assert (undecided.blocked_by, undecided.competing) == ("COMPETING_INTENTS", ("INT-1", "INT-2"))
    assert forks("INT-1").resolve().active == "INT-1"
    assert forks("INT-2").resolve().active == "INT-2"


def test_the_active_child_of_a_fork_may_move_on() -> None:
    history = forks("INT-1")
    history.declare("INT-3", "INT-2")
    assert history.resolve().active == "INT-1"  # what hangs on the child that was passed over does not compete either
    history.declare("INT-4", "INT-P")
    history.supersede("INT-1", "INT-4")
    assert history.resolve().active == "INT-4"
    record = successor(history.state().intents, "INT-1")
    assert record is not None
    assert record.intent_id == "INT-4"
    history.close("INT-4")
    assert successor(history.state().intents, "INT-1") is None
    assert history.resolve().active == "INT-3"


def test_intents_above_each_other_end_nowhere_but_hang_nobody() -> None:
    history = History()
    history.declare("INT-1", "INT-2")
    history.declare("INT-2", "INT-1")
    assert history.resolve().active is None
    assert [each.intent_id for each in ancestors(history.state().intents, "INT-1")] == ["INT-2"]


def test_one_intent_can_be_looked_at_unless_intents_compete() -> None:
    history = History()
    history.declare("INT-1")
    history.declare("INT-2", "INT-1")
    assert resolve_active(history.state(), CLASSIFIED, intent_id="INT-1") == ("INT-1", None, (), ())
    assert resolve_active(history.state(), CLASSIFIED, intent_id="INT-9").active is None
    history.declare("INT-3")
    blocked = resolve_active(history.state(), CLASSIFIED, intent_id="INT-1")
    assert (blocked.active, blocked.blocked_by, blocked.competing) == (None, "COMPETING_INTENTS", ("INT-2", "INT-3"))


@pytest.mark.parametrize(
    ("said", "chosen"),
    [
        ("2", "INT-2"),
        (" 1. ", "INT-1"),
        ("0", None),
        ("3", None),
        ("²", None),
        ("9" * 5_000, None),
        ("goal INT-2", "INT-2"),
        ("let us go on with Goal  int-1, please", "INT-1"),
        ("goal INT-1 or goal INT-2", None),
        ("something else", None),
        ("", None),
    ],
)
def test_an_answer_chooses_a_thread_by_number_or_name(said: str, chosen: str | None) -> None:
    history = History()
    history.declare("INT-1")
    history.declare("INT-2")
    competing = history.resolve().competing
    intents = history.state().intents
    assert describe_conflict(competing, intents).splitlines()[1:] == ["1. goal INT-1", "2. goal INT-2"]
    assert choose_thread(said, competing, intents) == chosen
    if chosen is not None:
        history.write(keep_intent(chosen, competing))
        assert history.resolve() == (chosen, None, (), ())


_said = st.dictionaries(
    st.sampled_from(["intent_relation", "confidence", "intent", "prior_intent_id", "candidate_objective"]),
    st.sampled_from(["continue", "switch", "close", "new", "INT-1", "INT-2", 0.9, 0.1, None, {"action": "supersede"}]),
)


@given(
    st.lists(st.tuples(_said, st.booleans()), max_size=8), st.sampled_from(["continue", "continue_and_flag", "declare", "ask"])
)
def test_whatever_is_suggested_a_session_has_one_intent_at_most_and_a_legal_life(
    messages: list[tuple[dict[str, Any], bool]], policy: Any
) -> None:
    ruleset = Ruleset(admission="newest_first", intent_mode="classified", unclear_policy=policy)
    history = History()
    for said, completes in messages:
        decision = decide(history, said, ruleset)
        resolution = history.resolve(ruleset)
        assert resolution.blocked_by is None
        assert resolution.active == (None if decision.action == "CLOSE" else decision.intent_id)
        if resolution.active is not None and completes:
            history.close(resolution.active)
