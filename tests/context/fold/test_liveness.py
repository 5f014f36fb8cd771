"""Which events may follow which, and that the order of arrival does not matter."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kitchener.context import (
    ContextState,
    Projector,
    SourceEvent,
    eligible,
    explain,
    fold,
    make_event,
    read_event,
    resolve_active,
)
from kitchener.context.fold.lifecycle import first_intent_problem
from kitchener.context.ruleset import Ruleset
from tests.context.history import ESTIMATE, SESSION, History, entry_ref, event, event_lists, facts, shown, text_of
from tests.shared.property_examples import examples


def problems(history: History) -> list[str]:
    return [found.problem for found in history.state().invalid.values()]


def test_an_intent_is_declared_once_and_ends_once() -> None:
    history = History()
    history.declare("INT-1")
    history.declare("INT-1")
    history.close("INT-1")
    history.close("INT-1")
    history.add("INTENT_ABANDONED", "INT-1", reason="late")
    history.add("INTENT_CLOSED", "INT-9", outcome="done")
    assert problems(history) == [
        "intent INT-1 was declared before",
        "intent INT-1 was closed before",
        "intent INT-1 was closed before",
        "intent INT-9 was never declared",
    ]


def test_a_reopened_intent_is_live_again_and_can_end_again() -> None:
    history = History()
    history.declare("INT-1")
    history.add("INTENT_REOPENED", "INT-1", reason="of a live one")
    history.close("INT-1")
    history.add("INTENT_REOPENED", "INT-1", reason="not done after all")
    assert problems(history) == ["intent INT-1 is live and cannot be reopened"]
    assert history.resolve().active == "INT-1"
    history.close("INT-1")
    assert len(problems(history)) == 1
    assert history.resolve().active is None


def test_a_reopening_takes_the_intents_own_supersession_back() -> None:
    history = History()
    for name in ("INT-1", "INT-2"):
        history.declare(name)
    history.supersede("INT-1", "INT-2")
    history.add("INTENT_REOPENED", "INT-1", reason="back")
    history.supersede("INT-2", "INT-1")  # a cycle only over edges that no longer stand
    assert problems(history) == []
    assert history.resolve().active == "INT-1"


def test_nothing_is_superseded_by_itself_or_by_something_undeclared() -> None:
    history = History()
    history.declare("INT-1")
    history.supersede("INT-1", "INT-1")
    history.supersede("INT-1", "INT-7")
    history.open("WO-1", "INT-1")
    history.add("WO_SUPERSEDED", "WO-1", superseded_by_wo_id="WO-1")
    assert problems(history) == [
        "INT-1 is superseded by itself",
        "intent INT-1 is superseded by INT-7, which was never declared",
        "WO-1 is superseded by itself",
    ]
    assert history.resolve().active == "INT-1"


def test_a_cycle_of_superseded_work_orders_is_seen() -> None:
    history = History()
    for name in ("WO-1", "WO-2", "WO-3"):
        history.open(name, "INT-1")
    history.add("WO_SUPERSEDED", "WO-1", superseded_by_wo_id="WO-2")
    history.add("WO_SUPERSEDED", "WO-2", superseded_by_wo_id="WO-3")
    history.add("WO_SUPERSEDED", "WO-3", superseded_by_wo_id="WO-1")
    assert problems(history) == ["WO-3 is superseded by WO-1, which gave way to WO-3"]
    assert history.state().work_orders["WO-3"].is_live


def test_after_a_failure_only_its_successor_or_its_end_may_come() -> None:
    history = History()
    history.open("WO-1", "INT-1")
    history.fail("WO-1")
    history.add("WO_COMPLETED", "WO-1")
    history.add("WO_DEFERRED", "WO-1", reason="too late")
    assert [problem.startswith("work order WO-1 has failed") for problem in problems(history)] == [True, True]
    assert history.state().work_orders["WO-1"].status == "failed"
    history.add("WO_ABANDONED", "WO-1", reason="turn_over")
    assert not history.state().work_orders["WO-1"].is_live


def test_a_waiting_work_order_may_go_on_and_end() -> None:
    history = History()
    history.open("WO-1", "INT-1")
    history.add("WO_DEFERRED", "WO-1", reason="approval")
    history.add("WO_DEFERRED", "WO-1", reason="approval again")
    history.add("WO_CLOSED", "WO-1", result="success")
    assert problems(history) == []
    history.open("WO-1", "INT-1")
    assert problems(history) == ["work order WO-1 was opened before"]


@pytest.mark.parametrize("end", ["WO_CLOSED", "WO_FAILED", "WO_SUPERSEDED", "WO_ABANDONED", "WO_RETIRED", "WO_DEFERRED"])
def test_a_reopened_work_order_is_open_whatever_became_of_it(end: str) -> None:
    history = History()
    history.declare("INT-1")
    for name in ("WO-1", "WO-2"):
        history.open(name, "INT-1", targets=["a.txt"], acceptance=["contains:pear"])
    assert history.state().work_orders["WO-1"].is_live
    history.add(end, "WO-1", superseded_by_wo_id="WO-2", reason="because")
    history.add("WO_REOPENED", "WO-1", reason="after all")
    state = history.state()
    assert problems(history) == []
    assert (state.work_orders["WO-1"].status, state.work_orders["WO-1"].superseded_by) == ("open", None)
    assert list(state.attached("INT-1").work_orders) == ["WO-1", "WO-2"]
    assert eligible(state, "INT-1")["WO-1"] == ("OPEN_WO", "REACHABLE_FROM_INTENT")
    text = text_of(history.project()).text
    assert "Work order WO-1 (synthesize) open: after all\nTargets: a.txt\nAccepted when: contains:pear" in text
    history.add("WO_REOPENED", "WO-1", reason="again")
    assert problems(history) == ["work order WO-1 is open and cannot be reopened"]


def test_a_retired_work_order_is_gone_even_after_a_failure() -> None:
    history = History()
    history.declare("INT-1")
    history.open("WO-1", "INT-1")
    history.fail("WO-1")
    assert "WO-1" in shown(history.project())
    history.add("WO_RETIRED", "WO-1", reason="no use")
    history.add("WO_CLOSED", "WO-1", result="success")
    assert problems(history) == ["work order WO-1 was retired before"]
    assert "WO-1" not in eligible(history.state(), "INT-1")


def test_a_retired_intent_takes_its_items_along_until_it_is_reopened() -> None:
    history = History()
    history.declare("INT-1")
    history.turn("T-1", "INT-1")
    history.add("INTENT_RETIRED", "INT-1", reason="no use")
    assert (history.resolve().active, eligible(history.state(), "INT-1")) == (None, {})
    history.close("INT-1")
    assert problems(history) == ["intent INT-1 was retired before"]
    history.add("INTENT_REOPENED", "INT-1", reason="after all")
    assert history.resolve().active == "INT-1"
    assert shown(history.project()) == ["INT-1", "T-1"]


def test_a_deferred_intent_is_live_but_never_active_until_it_is_reopened() -> None:
    history = History()
    history.declare("INT-1")
    history.add("INTENT_DEFERRED", "INT-1", reason="later")
    assert (history.resolve().active, history.state().intents["INT-1"].is_live) == (None, True)
    history.add("INTENT_REOPENED", "INT-1", reason="now")
    assert problems(history) == []
    assert history.resolve().active == "INT-1"


@pytest.mark.parametrize(("end", "more"), [("WO_CLOSED", {"result": "failed"}), ("WO_CLOSED", {}), ("WO_COMPLETED", {})])
def test_the_evidence_of_a_result_is_explained(end: str, more: dict[str, str]) -> None:
    history = History()
    history.declare("INT-1")
    history.open("WO-1", "INT-1")
    proof = entry_ref(77)
    history.add(end, "WO-1", **more, evidence_refs=[proof.as_mapping(), {"ledger_id": "only"}, "text", 7])
    found = explain("WO-1", history.state(), history.project())
    assert found.evidence == (proof,)
    assert found.text.endswith(f"; evidence: {proof.ledger_id} {proof.entry_id}")
    history.add("WO_REOPENED" if not more else "WO_RETIRED", "WO-1", reason="over")
    assert explain("WO-1", history.state(), history.project()).evidence == ()


def test_a_turn_is_completed_once_and_work_may_be_planned_under_anything() -> None:
    history = History()
    history.turn("T-1", "INT-unknown")
    history.open("WO-1", "INT-unknown")
    assert problems(history) == []
    history.turn("T-1", "INT-unknown")
    assert problems(history) == ["turn T-1 was completed before"]


def test_a_fork_names_children_that_were_declared() -> None:
    history = History()
    history.declare("INT-1")
    history.add("INTENT_FORKED", "INT-1", child_intent_ids=["INT-2"], reason="two ways")
    assert problems(history) == ["intent INT-1 forks into INT-2, which was never declared"]


def test_a_void_entry_never_happened() -> None:
    history = History()
    history.declare("INT-1")
    wrong = history.close("INT-1")
    again = history.close("INT-1")
    history.add("LIFECYCLE_VOIDED", "INT-1", ref=again.ref.as_mapping(), reason="twice")
    assert problems(history) == []
    assert history.resolve().active is None
    history.add("LIFECYCLE_VOIDED", "INT-1", ref=wrong.ref.as_mapping(), reason="by mistake")
    assert history.resolve().active == "INT-1"
    assert make_event("LIFECYCLE_VOIDED", "INT-1", "", {"reason": "names nothing"}, entry_ref(9)) is None


def test_an_impossible_event_is_left_out_or_stops_everything() -> None:
    history = History()
    history.declare("INT-1")
    wrong = history.declare("INT-1")
    ignoring, blocking = history.resolve(), history.resolve(Ruleset(admission="newest_first", invalid_lifecycle_policy="block"))
    assert (ignoring.active, ignoring.blocked_by) == ("INT-1", None)
    assert (blocking.active, blocking.blocked_by) == (None, "INVALID_LIFECYCLE")
    for found in (ignoring, blocking):
        assert [(flag.kind, flag.details_ref) for flag in found.flags] == [("INVALID_LIFECYCLE", wrong.ref)]


def test_an_event_can_be_tried_before_it_is_written() -> None:
    history = History()
    history.declare("INT-1")
    state = history.state()
    assert first_intent_problem([event(9, "INTENT_CLOSED", "INT-1", {})], state.intents) is None
    unknown = ("INT-2", "intent INT-2 was never declared")
    assert first_intent_problem([event(9, "INTENT_CLOSED", "INT-2", {})], state.intents) == unknown
    assert not state.invalid


def test_events_that_go_together_are_tried_one_after_the_other() -> None:
    """What the first makes of an intent counts for the second, and nothing of it stays."""
    history = History()
    history.declare("INT-1")
    state = history.state()
    back = [event(9, "INTENT_CLOSED", "INT-1", {}), event(10, "INTENT_REOPENED", "INT-1", {})]
    assert first_intent_problem(back, state.intents) is None
    assert first_intent_problem(back[1:], state.intents) == ("INT-1", "intent INT-1 is live and cannot be reopened")
    assert first_intent_problem(back[:1] * 2, state.intents) == ("INT-1", "intent INT-1 was closed before")
    assert state.intents["INT-1"].is_live


def test_the_text_of_a_turn_comes_from_both_its_entries() -> None:
    history = History()
    history.declare("INT-1")
    history.turn("T-1", "INT-1", words=0)
    history.add("TURN_STARTED", "T-2", user_message="lost")
    history.add("TURN_ABORTED", "T-2", reason="crash")
    history.add("TURN_COMPLETED", "T-3", intent_id="INT-1", user_message="own", response={"$sealed": {"v": 1}})
    assert [item.text for item in history.state().attached("INT-1").turns] == [
        "user: question of T-1\nassistant: answer of T-1",
        "[T-3] erased",
    ]


def test_turns_of_an_older_session_belong_to_the_intent_that_adopts_them() -> None:
    history = History()
    history.turn("T-1", None)
    history.turn("T-2", None)
    history.declare("INT-1", adopts_turns=True)
    history.turn("T-3", "INT-1")
    assert [item.entity_id for item in history.state().attached("INT-1").turns] == ["T-1", "T-2", "T-3"]
    assert [item.intent_id for item in history.state().turns.values()] == ["INT-1"] * 3


def test_failures_in_a_row_are_counted_per_intent() -> None:
    history = History()
    for n, (intent, ok) in enumerate([("INT-1", False), ("INT-2", True), ("INT-1", False)]):
        history.turn(f"T-{n}", intent, ok=ok)
    assert history.state().attached("INT-1").failures_in_row == 2
    history.turn("T-9", "INT-1")
    assert history.state().attached("INT-1").failures_in_row == 0


@pytest.mark.parametrize("written", ["2026-02-18T09:00:01Z", "2026-02-18T10:00:01+01:00", "2026-02-18T09:00:01"])
def test_times_are_compared_as_times(written: str) -> None:
    made = make_event("INTENT_CLOSED", "INT-1", written, {}, entry_ref(1))
    assert made is not None
    assert made.timestamp == "2026-02-18T09:00:01.000000+00:00"


def test_entries_that_mean_nothing_here_are_not_even_decoded() -> None:
    class Entry:
        entry_type, entity_id, timestamp, ref = "WO_DISPATCHED", "WO-1", "", entry_ref(1)

        @property
        def payload(self) -> dict[str, object]:
            raise AssertionError("looked at")

    assert read_event(Entry()) is None


def test_the_same_event_twice_is_one() -> None:
    history = History()
    history.declare("INT-1")
    history.close("INT-1")
    doubled = fold([*history.events, *history.events], ESTIMATE, SESSION)
    assert doubled.snapshot() == history.state().snapshot()


@given(event_lists(), st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter(events: list[SourceEvent], chance: object) -> None:
    shuffled = list(events)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]  # Hypothesis gives a `random.Random`
    in_order = fold(sorted(events, key=lambda each: each.key), ESTIMATE, SESSION)
    assert fold(shuffled, ESTIMATE, SESSION).snapshot() == in_order.snapshot()


@given(event_lists())
def test_an_invalid_event_has_no_effect_at_all(events: list[SourceEvent]) -> None:
    state = fold(events, ESTIMATE, SESSION)
    without = fold([each for each in events if each.ref not in state.invalid], ESTIMATE, SESSION)
    assert without.snapshot() == {**state.snapshot(), "invalid": []}


@given(event_lists())
def test_what_is_live_hangs_where_it_says(events: list[SourceEvent]) -> None:
    state = fold(events, ESTIMATE, SESSION)
    hanging = {wo_id for name in ("INT-1", "INT-2", "INT-3") for wo_id in state.attached(name).work_orders}
    assert hanging == {key for key, each in state.work_orders.items() if each.is_live and each.facts.intent_id}
    assert set(state.live_intents) == {key for key, each in state.intents.items() if each.is_live}
    for record in state.intents.values():  # no chain of supersessions comes back to where it began
        steps, step = 0, record.superseded_by
        while step is not None:
            steps, step = steps + 1, state.intents[step].superseded_by
            assert steps <= len(state.intents)


class LedgerMachine(RuleBasedStateMachine):
    """A session that runs: events in time, events late, looks in between; always equal to a recomputation."""

    def __init__(self) -> None:
        super().__init__()
        self.state = ContextState(ESTIMATE, SESSION)
        self.applied: list[SourceEvent] = []

    @rule(said=facts())
    def in_time(self, said: tuple[str, str, dict[str, object]]) -> None:
        self._take(event(len(self.applied) + 1, *said, at=100 + len(self.applied)))

    @precondition(lambda self: self.applied)
    @rule(said=facts(), at=st.integers(90, 130))
    def late(self, said: tuple[str, str, dict[str, object]], at: int) -> None:
        self._take(event(len(self.applied) + 1, *said, at=min(at, 99 + len(self.applied))))

    def _take(self, taken: SourceEvent) -> None:
        self.applied.append(taken)
        self.state.apply(taken)

    @invariant()
    def is_a_recomputation(self) -> None:
        again = fold(sorted(self.applied, key=lambda each: each.key), ESTIMATE, SESSION)
        assert self.state.snapshot() == again.snapshot()
        ruleset = Ruleset(admission="newest_first", intent_conflict_policy="most_recent_wins", context_budget=120)
        projector = Projector(ruleset)
        mine = projector.project(self.state, resolve_active(self.state, ruleset))
        theirs = projector.project(again, resolve_active(again, ruleset))
        assert mine._replace(turns=()) == theirs._replace(turns=())
        assert list(mine.eligible()) == list(theirs.eligible())


TestRunningSession = LedgerMachine.TestCase
TestRunningSession.settings = settings(max_examples=examples(few=12, many=300), stateful_step_count=30)
