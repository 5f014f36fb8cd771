"""Results of tools as items: which count as repeated, what of a long one is shown, and that no limit is exceeded."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kitchener.context import Projector, Ruleset, ToolResult, estimator, fold, result_item
from kitchener.context.fold.tool_results import MAX_CHARS, excerpt, is_repeated, result_text
from kitchener.context.intents.active import Resolution, resolve_active
from kitchener.context.projection.record import lists_of
from kitchener.records.ref import Ref
from tests.context.history import History
from tests.shared.property_examples import examples

ESTIMATE = estimator("utf8/3")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-10_000, 10_000) | st.text(max_size=300),
    lambda each: st.lists(each, max_size=12) | st.dictionaries(st.text(max_size=80), each, max_size=8),
    max_leaves=60,
)


def a_result(text: str, number: int = 1, turn_id: str = "T-0000000a-000001", tool_id: str = "look_up") -> ToolResult:
    ref = Ref("HO1M:ADMIN", f"E-2026-01-01-{number:012d}", f"sha256:{number:064d}")
    return ToolResult(ref, f"2026-01-01T00:00:{number:02d}.000000+00:00", turn_id, "WO-SES-0000000a-002", number, tool_id, text)


@pytest.mark.parametrize(
    ("result", "reply", "is_said"),
    [
        ({"door": "north", "code": 4711}, "The north door opens with 4711.", True),
        ({"door": "north", "code": 4711}, "The code is 4711.", False),
        ({"door": "north", "code": 4711}, "The NORTH door: 4711!", True),
        ({"code": 4711}, "It is 47110.", False),
        ("sunny, 21 °C", "21 °C and sunny", True),
        ([], "nothing found", True),
        ({}, "nothing found", True),
        (None, "nothing", True),
        ([None, {"rows": []}], "nothing", True),
        (True, "done", False),
        ("…", "done", True),
    ],
)
def test_a_reply_repeats_a_result_if_it_has_all_of_its_words(result: Any, reply: str, is_said: bool) -> None:
    assert is_repeated(result, reply) is is_said


def test_a_long_result_has_a_line_for_each_part() -> None:
    rows: list[Any] = [{"city": f"City {n}", "people": n * 1_000, "mayor": "x" * 60} for n in range(5)]
    text = result_text({"rows": rows, "source": "census"})
    assert text.splitlines()[0] == f"rows: {json.dumps(rows[0], sort_keys=True, separators=(',', ':'))}"
    assert len(text.splitlines()) == 6
    assert text.splitlines()[-1] == "source: census"
    assert result_text("as it\nis") == "as it\nis"


@given(JSON)
def test_the_text_of_a_result_is_bounded_and_deterministic(result: Any) -> None:
    assert len(result_text(result)) <= MAX_CHARS
    assert result_text(result) == result_text(json.loads(json.dumps(result)))


def test_the_text_of_a_huge_result_is_cut() -> None:
    assert len(result_text({"k" * 100: {str(n): "word " * 50 for n in range(2_000)}})) == MAX_CHARS


def test_an_excerpt_has_the_beginning_and_what_matches_in_order() -> None:
    lines = [f"line {n} about the number {n * 11}" for n in range(200)]
    found = excerpt("\n".join(lines), "what about 550?", 60, ESTIMATE).splitlines()
    assert found[0] == lines[0]
    assert lines[50] in found
    assert found.index(lines[50]) < len(found) - 1
    assert found[-1] == "…"
    shown = [lines.index(each) for each in found if each != "…"]
    assert shown == sorted(shown)
    assert excerpt("short", "anything", 60, ESTIMATE) == "short"


@given(st.text(max_size=2_000), st.text(max_size=80), st.integers(1, 200), st.sampled_from(["utf8/3", "chars/4"]))
def test_an_excerpt_fits_and_shows_only_what_is_there(text: str, message: str, most: int, name: str) -> None:
    estimate = estimator(name)
    found = excerpt(text, message, most, estimate)
    assert estimate(found) <= most
    assert found == excerpt(text, message, most, estimate)
    assert all(line == "…" or line.removesuffix("…") in text for line in found.splitlines())


@given(st.text(max_size=2_000), st.text(max_size=80), st.integers(64, 300))
def test_an_item_never_takes_more_than_its_limit(text: str, message: str, most: int) -> None:
    item = result_item(a_result(text), message, most, ESTIMATE)
    assert item.tokens == ESTIMATE(item.text + "\n\n") <= most


def test_marks_of_quoted_lines_count_too() -> None:
    """A result of nothing but lines that imitate a speaker is shorter, not over the limit."""
    item = result_item(a_result("x\n" + "ai:\n" * 2_000), "x", 64, ESTIMATE)
    assert item.tokens <= 64
    assert "\n> ai:" in item.text


@settings(max_examples=examples(few=15, many=300))
@given(
    st.lists(st.tuples(st.text(max_size=400), st.integers(0, 2)), max_size=8),
    st.integers(0, 400),
    st.integers(0, 3),
    st.text(max_size=60),
)
def test_the_tier_of_results_keeps_to_the_budget_and_is_deterministic(
    results: list[tuple[str, int]], budget: int, stubs: int, message: str
) -> None:
    """Whatever the results and the budget; eligible are those of the active intent, before turns, newest packed first."""
    history = History()
    history.declare("INT-1")
    for turn in ("T-1", "T-2"):
        history.turn(turn, "INT-1")
    state = fold(history.events, ESTIMATE)
    ruleset = Ruleset(context_budget=budget, max_stubs=stubs, admission="newest_first")
    intents = ("INT-1", "INT-2", None)
    items = [
        result_item(a_result(text, n), message, 120, ESTIMATE, intent_id=intents[whose])
        for n, (text, whose) in enumerate(results, 1)
    ]
    resolution = resolve_active(state, ruleset)
    assert isinstance(resolution, Resolution)
    found = Projector(ruleset).project(state, resolution, message=message, results=items)
    again = Projector(ruleset).project(state, resolution, message=message, results=items)
    assert lists_of(found) == lists_of(again)
    mine = [item for item in items if item.intent_id == "INT-1"]
    eligible = list(found.eligible())
    assert [each for each in eligible if each.kind == "tool_result"] == mine
    assert eligible == sorted(eligible, key=lambda each: (each.tier, each.place))
    flagged = any(flag.kind == "UNSUPPRESSIBLE_OVER_BUDGET" for flag in found.flags)
    assert found.tokens_used <= budget or flagged
    placed = [each for each in found.head if each.item.kind == "tool_result"]
    assert all(each.reason == "BUDGET_EVICTION" for each in placed if each.form != "FULL")
    assert sum(each.form == "STUB" for each in placed) <= stubs
