"""What is shown under a budget, in which form, for which reason, and in which order."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.canonical import digest
from kitchener.context import (
    Item,
    Projector,
    SourceEvent,
    bias_item,
    estimator,
    evidence_item,
    fold,
    recall_last_closed,
    recalled,
    resolve_active,
)
from kitchener.context.projection.rendering import render
from kitchener.context.ruleset import Ruleset
from kitchener.errors import ConfigError
from kitchener.records.ref import Ref
from tests.context.history import (
    ESTIMATE,
    NEWEST,
    SESSION,
    WORD_RANK,
    History,
    Ranked,
    by_words,
    entry_ref,
    event_lists,
    hidden,
    rulesets,
    second,
    shown,
    text_of,
)


def newest(**knobs: Any) -> Ruleset:
    return Ruleset(admission="newest_first", **knobs)


def talk(turns: int = 10) -> History:
    history = History()
    history.declare("INT-1")
    for n in range(1, turns + 1):
        history.turn(f"T-{n:02d}", "INT-1")
    return history


def memory(number: int, text: str = "likes short answers") -> Item:
    return bias_item(f"ART-{number}", Ref("OVERLAYS", f"E-{number}", digest(b"x")), second(0), text, ESTIMATE)


def evidence(number: int, text: str, group: str | None = None) -> Item:
    ref = Ref("HO1M:ADMIN", f"E-{number}", digest(b"y"))
    return evidence_item(f"T-old-{number}", ref, second(0), text, ESTIMATE, group=group)


def test_everything_is_shown_in_the_order_of_tiers_and_age_where_it_fits() -> None:
    history = talk(2)
    history.open("WO-1", "INT-1")
    history.open("WO-2", "INT-1")
    history.fail("WO-2")
    rules = newest(standing_rules=tuple(f"Rule {n}." for n in range(1, 12)))
    projection = history.project(rules, biases=[memory(2), memory(1)])
    inv = [f"INV-{n}" for n in range(1, 12)]
    assert shown(projection) == [*inv, "INT-1", "WO-2", "WO-1", "ART-1", "ART-2", "T-01", "T-02"]
    assert hidden(projection) == {}
    assert {item.entity_id: item.reasons for item in projection.eligible()}["INV-1"] == ("GLOBAL_INVARIANT",)
    rule = next(projection.eligible())
    assert rule.ref == Ref("RULESET", "INV-1", digest(b"Rule 1."))
    assert projection.tokens_used == sum(each.tokens for each in projection.visible)


def test_the_text_is_ordered_by_how_often_it_changes() -> None:
    history = History()
    history.declare("INT-P", scope="PROJECT")
    history.declare("INT-1", "INT-P", targets=["the list"])
    history.open("WO-1", "INT-1")
    history.turn("T-1", "INT-1", words=0)
    history.turn("T-2", "INT-1", words=0)
    projection = history.project(newest(standing_rules=("Be brief.",)), biases=[memory(1)])
    rendering = text_of(projection)
    assert rendering.text.split("\n\n") == [
        "Be brief.",
        "Wider goal: goal INT-P",
        "Goal: goal INT-1\nTargets: the list",
        "likes short answers",
        "user: question of T-1\nassistant: answer of T-1",
        "user: question of T-2\nassistant: answer of T-2",
        "Work order WO-1 (synthesize) open",
    ]
    prefix = "\n\n".join(rendering.text.split("\n\n")[:4])
    assert (rendering.stable_prefix_tokens, rendering.stable_prefix) == (ESTIMATE(prefix), prefix)
    assert rendering.text_hash == digest(rendering.text.encode())
    assert len(rendering.refs) == 7
    without = render(projection, ESTIMATE, elsewhere=("rule", "bias"))
    assert without.text == rendering.text.replace("Be brief.\n\n", "").replace("likes short answers\n\n", "")


def test_another_turn_leaves_the_stable_prefix_alone_and_another_goal_does_not() -> None:
    history = talk(3)
    first = text_of(history.project())
    history.turn("T-99", "INT-1")
    history.open("WO-1", "INT-1")
    assert text_of(history.project()).stable_prefix == first.stable_prefix
    history.declare("INT-2", "INT-1")
    assert text_of(history.project()).stable_prefix != first.stable_prefix


def test_of_many_failures_the_newest_are_shown_and_the_rest_counted() -> None:
    history = talk(1)
    for n in range(200):
        history.open(f"WO-{n:03d}", "INT-1")
        history.fail(f"WO-{n:03d}")
    projection = history.project(newest(max_failed_items=2))
    assert shown(projection) == ["INT-1", "WO-198", "WO-199", "T-01"]
    assert set(hidden(projection).values()) == {("STUB", "LOW_URGENCY")}
    assert len(hidden(projection)) == 198
    text = text_of(projection).text
    assert "[198 earlier work orders failed, the last of them WO-197]" in text
    assert "WO-196" not in text
    none = history.project(newest(max_failed_items=0))
    assert "[200 earlier work orders failed, the last of them WO-199]" in text_of(none).text


@pytest.mark.parametrize(
    ("version", "texts"),
    [
        (9, ("[1 earlier work order failed, the last of them WO-0]", "Wider goal (put off): goal INT-P")),
        (10, ("[1 earlier work order failed: WO-0]", "Wider goal (deferred): goal INT-P")),
    ],
)
def test_fixed_texts_have_the_words_of_their_version(version: int, texts: tuple[str, ...]) -> None:
    history = History()
    history.declare("INT-P")
    history.declare("INT-1", "INT-P")
    history.add("INTENT_DEFERRED", "INT-P", reason="later")
    for n in range(2):
        history.open(f"WO-{n}", "INT-1")
        history.fail(f"WO-{n}")
    text = text_of(history.project(newest(max_failed_items=1, policy_version=version))).text
    assert [each for each in texts if each not in text] == []


def test_what_must_be_shown_and_does_not_fit_is_shown_in_its_shortest_form() -> None:
    history = History()
    history.add("INTENT_DECLARED", "INT-1", objective="a very long objective " * 40)
    projection = history.project(newest(context_budget=60, standing_rules=("Never shorten a rule, whatever the budget is.",)))
    assert [flag.kind for flag in projection.flags] == ["UNSUPPRESSIBLE_OVER_BUDGET"]
    rule, goal = projection.visible
    assert not rule.is_compact
    assert goal.is_compact
    assert goal.text.endswith("…")
    assert projection.tokens_used == rule.tokens + goal.tokens <= 60
    tighter = history.project(newest(context_budget=0))
    assert shown(tighter) == ["INT-1"]
    assert tighter.tokens_used > 0


def test_what_others_wait_for_cannot_be_suppressed() -> None:
    history = History()
    history.declare("INT-1")
    history.open("WO-1", "INT-1", targets=["x" * 300])
    history.open("WO-2", "INT-1", blocked_by=["WO-1", "WO-3"])
    history.open("WO-3", "INT-1")
    history.add("WO_DEFERRED", "WO-3", reason="approval")
    projection = history.project(newest(context_budget=0))
    assert shown(projection) == ["INT-1", "WO-1"]
    assert hidden(projection) == {"WO-2": ("NONE", "BUDGET_EVICTION"), "WO-3": ("STUB", "DEFERRED")}


def test_the_newest_turns_are_admitted_first_and_shown_oldest_first() -> None:
    history = talk(10)
    one = history.project().visible[-1].tokens
    header = history.project().visible[0].tokens
    projection = history.project(newest(context_budget=header + 3 * one + 1, max_stubs=0))
    assert shown(projection) == ["INT-1", "T-08", "T-09", "T-10"]
    assert hidden(projection) == {
        **{f"T-{n:02d}": ("NONE", "LOW_URGENCY") for n in range(1, 7)},
        "T-07": ("NONE", "BUDGET_EVICTION"),
    }
    assert projection.free == 1
    evicted = next(each for each in projection.suppressed() if each.item.entity_id == "T-07")
    assert evicted.short_by == one - 1


def test_what_does_not_fit_is_skipped_and_kept_as_a_stub() -> None:
    history = talk(3)
    history.turn("T-90", "INT-1", words=400)
    projection = history.project(newest(context_budget=150))
    assert shown(projection) == ["INT-1", "T-01", "T-02", "T-03"]
    assert hidden(projection) == {"T-90": ("STUB", "BUDGET_EVICTION")}
    assert "[T-90] user: question of T-90 more more" in text_of(projection).text
    assert hidden(history.project(newest(context_budget=150, max_stubs=0)))["T-90"] == ("NONE", "BUDGET_EVICTION")


def test_stubs_are_counted_and_limited() -> None:
    history = talk(0)
    for n in range(9):
        history.open(f"WO-{n}", "INT-1", targets=["t" * 900])
    projection = history.project(newest(context_budget=200, max_stubs=4))
    forms = [form for form, _ in hidden(projection).values()]
    assert forms.count("STUB") == 4
    assert forms.count("NONE") == 5
    assert projection.tokens_used <= 200


def test_a_ranking_admits_what_it_names_after_the_newest() -> None:
    history = talk(8)
    history.add("TURN_COMPLETED", "T-20", intent_id="INT-1", user_message="the cache is cold", response="so it is")
    for n in range(30, 34):
        history.turn(f"T-{n}", "INT-1")
    ruleset = Ruleset(newest_turns=2, max_stubs=3)
    projection = history.project(ruleset, ranking=WORD_RANK, message="why is the cache cold")
    assert shown(projection) == ["INT-1", "T-20", "T-32", "T-33"]
    assert set(hidden(projection).values()) == {("NONE", "LOW_URGENCY")}


def test_a_ranking_that_repeats_itself_shows_nothing_twice() -> None:
    def stubborn(message: str, items: Sequence[Item]) -> list[int]:
        return [0, 0, len(items) - 1, 0]

    projection = talk(5).project(Ruleset(newest_turns=1), ranking=Ranked(stubborn), message="")
    assert shown(projection) == ["INT-1", "T-01", "T-05"]


def test_a_ranking_is_needed_where_the_policy_ranks() -> None:
    with pytest.raises(ConfigError, match="newest_first"):
        talk(1).project(Ruleset())


def test_recalled_evidence_competes_but_is_never_eligible() -> None:
    history = talk(2)
    history.turn("T-50", "INT-old")
    old = recalled(history.state().turns["T-50"])
    own = recalled(history.state().turns["T-01"])
    found = [evidence(1, "about the cache"), evidence(2, "nothing"), old, old, own]
    projection = history.project(Ruleset(newest_turns=1), ranking=WORD_RANK, recalled=found, message="cache T-50")
    assert shown(projection) == ["INT-1", "T-02", "T-old-1", "T-50"]
    assert [item.entity_id for item in projection.eligible()] == ["INT-1", "T-01", "T-02"]
    assert hidden(projection) == {"T-01": ("NONE", "LOW_URGENCY"), "T-old-2": ("NONE", "LOW_URGENCY")}
    assert {each.item.reasons for each in projection.visible[2:]} == {("RECALLED",)}
    text = text_of(projection).text
    assert text.index("about the cache") < text.index("question of T-02") < text.index("question of T-50")
    assert shown(history.project(recalled=found)) == ["INT-1", "T-01", "T-02"]  # the newest turns are what the policy admits


@pytest.mark.parametrize("budget", range(0, 90, 3))
def test_a_tool_call_and_its_result_are_shown_together_or_not_at_all(budget: int) -> None:
    history = talk(1)
    found = [evidence(1, "call of look_up", "G"), evidence(2, "result of look_up " * 3, "G"), evidence(3, "look_up")]
    ruleset = Ruleset(context_budget=budget, newest_turns=0, max_stubs=2)
    projection = history.project(ruleset, ranking=WORD_RANK, recalled=found, message="look_up")
    forms = {each.item.entity_id: each.form for each in (*projection.visible, *projection.suppressed())}
    assert forms["T-old-1"] == forms["T-old-2"]


def test_a_turn_without_an_intent_still_recalls_what_was_closed_last() -> None:
    history = talk(5)
    history.close("INT-1")
    ruleset = newest(newest_turns=2, standing_rules=("Be brief.",))
    state = history.state()
    last = recall_last_closed(state, ruleset)
    projection = Projector(ruleset).project(state, resolve_active(state, ruleset), recalled=last, biases=[memory(1)])
    assert projection.intent_id is None
    assert shown(projection) == ["INV-1", "ART-1", "T-04", "T-05"]
    assert [item.entity_id for item in projection.eligible()] == ["INV-1", "ART-1"]
    history.add("INTENT_REOPENED", "INT-1", reason="again")
    history.add("INTENT_ABANDONED", "INT-1", reason="no")
    assert recall_last_closed(history.state(), ruleset) == ()


def test_the_reply_comes_before_the_context() -> None:
    history = talk(10)
    ruleset = newest(context_budget=500, reply_reserve=100)
    assert history.project(ruleset).token_budget == 500
    assert history.project(ruleset, tokens_left=5_000).token_budget == 500
    assert history.project(ruleset, tokens_left=300).token_budget == 200
    assert history.project(ruleset, tokens_left=50).token_budget == 0


def test_dead_ancestors_are_passed_through() -> None:
    history = History()
    history.declare("INT-root")
    history.turn("T-root", "INT-root")
    history.declare("INT-mid", "INT-root")
    history.turn("T-mid", "INT-mid")
    history.open("WO-mid", "INT-mid")
    history.declare("INT-1", "INT-mid")
    history.add("INTENT_ABANDONED", "INT-mid", reason="no need")
    history.turn("T-1", "INT-1")
    history.turn("T-root-2", "INT-root")
    history.turn("T-2", "INT-1")
    assert shown(history.project()) == ["INT-root", "INT-1", "T-root", "T-1", "T-root-2", "T-2"]


def test_turns_of_several_intents_stay_one_list_that_grows_at_its_end() -> None:
    history = History()
    history.declare("INT-P")
    history.turn("T-1", "INT-P")
    history.declare("INT-1", "INT-P")
    history.turn("T-2", "INT-1")
    state = history.state()
    projector = Projector(NEWEST)
    before = projector.project(state, resolve_active(state, NEWEST))
    for name, intent in (("T-3", "INT-P"), ("T-4", "INT-1")):
        state.apply(history.turn(name, intent))
    after = projector.project(state, resolve_active(state, NEWEST))
    assert after.turns is before.turns
    assert [item.entity_id for item in before.eligible()] == ["INT-P", "INT-1", "T-1", "T-2"]
    assert [item.entity_id for item in after.eligible()] == ["INT-P", "INT-1", "T-1", "T-2", "T-3", "T-4"]


def test_long_sessions_are_not_looked_through() -> None:
    """What a projection looks at is bounded by its budget and stubs, however many turns are eligible."""
    short, long = talk(300).project(), talk(900).project()
    assert len(short.placed) == len(long.placed)
    assert short.tokens_used == long.tokens_used


@given(event_lists(), rulesets, st.integers(0, 3), st.none() | st.integers(0, 600))
def test_a_projection_keeps_its_budget_and_accounts_for_everything(
    events: list[SourceEvent], ruleset: Ruleset, lines: int, tokens_left: int | None
) -> None:
    state = fold(events, ESTIMATE, SESSION)
    biases = [memory(n, "likes short answers " * n) for n in range(1, lines + 1)]
    found = [evidence(n, "short than longer", "G" if n < 3 else None) for n in range(1, lines + 1)]
    projection = Projector(ruleset).project(
        state,
        resolve_active(state, ruleset),
        ranking=WORD_RANK,
        message="longer",
        biases=biases,
        recalled=found,
        tokens_left=tokens_left,
    )
    flags = {flag.kind for flag in projection.flags}
    assert projection.tokens_used <= projection.token_budget or "UNSUPPRESSIBLE_OVER_BUDGET" in flags
    rendering = text_of(projection)
    assert ESTIMATE(rendering.text) <= projection.tokens_used
    assert rendering.stable_prefix_tokens <= projection.tokens_used
    eligible = [item.ref for item in projection.eligible()]
    visible = [each.item.ref for each in projection.visible]
    suppressed = [each.item.ref for each in projection.suppressed()]
    assert sorted(visible + suppressed) == sorted(eligible + [item.ref for item in found])
    assert set(visible) <= set(rendering.refs)
    stubs = [each for each in projection.suppressed() if each.form == "STUB" and each.tokens and each.reason != "DEFERRED"]
    assert len(stubs) <= ruleset.max_stubs
    assert all(each.reason is not None for each in projection.suppressed())
    deferred = {each.item.entity_id for each in projection.suppressed() if each.reason == "DEFERRED"}
    assert deferred == {item.entity_id for item in projection.eligible() if item.tier == 5}


def test_every_knob_changes_the_rulesets_name() -> None:
    plain = Ruleset()
    others = [
        Ruleset(intent_mode="classified"),
        Ruleset(intent_conflict_policy="most_recent_wins"),
        Ruleset(unclear_policy="ask"),
        Ruleset(intent_min_confidence=0.5),
        Ruleset(intent_max_failures=4),
        Ruleset(shared_intent_policy="active"),
        Ruleset(repeated_failure_policy="defer"),
        Ruleset(invalid_lifecycle_policy="block"),
        Ruleset(continue_after_close="reopen"),
        Ruleset(recent_turns=1),
        Ruleset(recall_scope="session"),
        Ruleset(admission="newest_first"),
        Ruleset(newest_turns=1),
        Ruleset(ranking_postings=512),
        Ruleset(recalled_turns=10),
        Ruleset(max_stubs=1),
        Ruleset(max_failed_items=1),
        Ruleset(reply_reserve=1),
        Ruleset(token_estimator="chars/4"),
        Ruleset(context_budget=1),
        Ruleset(excerpt_tokens=200),
        Ruleset(recent_parts=1),
        Ruleset(speaker_weight=1.3),
        Ruleset(prompt_layout="chat"),
        Ruleset(evict_to=0.5),
        Ruleset(standing_rules=("Be brief.",)),
        Ruleset(policy_version=1),
    ]
    assert len({each.ruleset_hash for each in [plain, *others]}) == len(others) + 1
    assert Ruleset().ruleset_hash == plain.ruleset_hash
    assert len(others) == len(Ruleset.__dataclass_fields__) - 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"intent_mode": "both"},
        {"max_stubs": -1},
        {"max_stubs": True},
        {"context_budget": 1.5},
        {"intent_min_confidence": float("nan")},
        {"intent_min_confidence": 2},
        {"admission": "random"},
    ],
)
def test_an_impossible_ruleset_says_what_is_wrong(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Ruleset(**wrong)


def test_tokens_are_estimated_by_name_or_by_a_plugged_in_tokenizer() -> None:
    assert [estimator(name)("ab€d") for name in ("utf8/3", "chars/4")] == [2, 1]
    with pytest.raises(ConfigError, match="token_estimator"):
        estimator("tiktoken")
    words = newest(token_estimator="words")
    projector = Projector(words, estimate=lambda text: len(text.split()))
    history = talk(1)
    state = fold(history.events, projector.estimate, SESSION)
    assert projector.project(state, resolve_active(state, words)).tokens_used == 3 + 10


def test_a_reference_of_an_entry_names_it_everywhere() -> None:
    history = talk(1)
    assert history.project().visible[-1].item.ref == entry_ref(3)


# --- where everything fits ----------------------------------------------------------------------------------------------------


def _ranks_all(message: str, items: Sequence[Item]) -> list[int]:
    """A ranking that leaves nothing out: words in common first, the others after them, and every second one twice."""
    best = by_words(message, items)
    return [*best, *[n for n in range(len(items)) if n not in best], *best[::2]]


@given(
    st.lists(st.integers(0, 60), max_size=7),
    st.lists(st.tuples(st.integers(0, 40), st.none() | st.just("tool call")), max_size=3),
    st.integers(0, 3),
    st.integers(-2, 2),
    st.booleans(),
)
def test_what_is_not_ranked_because_it_fits_is_decided_as_if_it_were(
    lengths: list[int], elsewhere: list[tuple[int, str | None]], newest: int, spare: int, exactly: bool
) -> None:
    """Around the very budget that is enough for everything: the same projection with and without the short way."""
    history = History()
    history.declare("INT-1")
    for n, length in enumerate(lengths):
        history.turn(f"T-{n:02d}", "INT-1", words=length)
    found = [
        evidence_item(f"T-x{n}", entry_ref(900 + n), second(n), "answer " * length, ESTIMATE, group=group)
        for n, (length, group) in enumerate(elsewhere)
    ]
    state, asked, asked_short = history.state(), list[int](), list[int]()

    def noting(ranks: list[int]) -> Callable[[str, Sequence[Item]], list[int]]:
        def note(message: str, items: Sequence[Item]) -> list[int]:
            ranks.append(len(items))
            return _ranks_all(message, items)

        return note

    roomy = Ruleset(context_budget=100_000, newest_turns=newest, max_stubs=2)
    needed = (
        Projector(roomy).project(state, resolve_active(state, roomy), ranking=Ranked(_ranks_all), recalled=found).tokens_used
    )
    ruleset = replace(roomy, context_budget=needed + spare) if exactly else roomy
    resolution = resolve_active(state, ruleset)
    ranked, short = (
        Projector(ruleset).project(state, resolution, ranking=each, message="word answer", recalled=found)
        for each in (Ranked(noting(asked)), Ranked(noting(asked_short), admits_all=True))
    )
    # Positions only say where to look for what was ranked; they decide nothing.
    assert short._replace(positions={}) == ranked._replace(positions={})
    assert asked in ([], [len(lengths) + len(found)]), "the newest turns come first, and may take the whole budget"
    assert asked_short == ([] if ruleset.context_budget > needed else asked)


@given(st.lists(st.integers(0, 60), max_size=7), st.integers(-2, 2))
def test_the_newest_come_first_and_stand_by_age_around_the_budget_that_is_enough(lengths: list[int], spare: int) -> None:
    """One token too few leaves out the oldest turn; from the very budget on, all are shown, oldest first."""
    history = History()
    history.declare("INT-1")
    for n, length in enumerate(lengths):
        history.turn(f"T-{n:02d}", "INT-1", words=length)
    needed = history.project(newest(context_budget=100_000)).tokens_used
    projection = history.project(newest(context_budget=needed + spare, max_stubs=0))
    full = [each.item.entity_id for each in projection.placed if each.form == "FULL"]
    expected = [f"T-{n:02d}" for n in range(len(lengths))]
    assert full == (expected if spare >= 0 else expected[1:])
    if spare >= 0:
        assert projection.free == spare
