"""Why something was shown or not, in values and in words."""

from kitchener.context import Explanation, diff_projections, explain
from kitchener.context.projection.explanation import explain_all
from kitchener.context.ruleset import Ruleset
from tests.context.history import History


def session() -> History:
    history = History()
    history.declare("INT-0")
    history.turn("T-00", "INT-0")
    history.declare("INT-1")
    history.supersede("INT-0", "INT-1")
    history.declare("INT-P", scope="PROJECT")
    history.turn("T-p", "INT-P")
    for n in range(1, 7):
        history.turn(f"T-{n:02d}", "INT-1")
    history.open("WO-1", "INT-1")
    history.open("WO-2", "INT-1")
    history.add("WO_DEFERRED", "WO-2", reason="approval")
    history.open("WO-3", "INT-1")
    history.add("WO_ABANDONED", "WO-3", reason="turn_over")
    history.open("WO-4", "INT-9")
    history.turn("T-none", None)
    return history


TIGHT = Ruleset(admission="newest_first", context_budget=85, max_stubs=0)


def why(name: str, ruleset: Ruleset = TIGHT) -> Explanation:
    history = session()
    return explain(name, history.state(), history.project(ruleset))


def test_what_is_visible_says_since_when_and_why() -> None:
    found = why("WO-1")
    assert (found.verdict, found.form, found.reasons) == ("visible", "FULL", ("OPEN_WO", "REACHABLE_FROM_INTENT"))
    opened = next(each for each in session().events if each.entity_id == "WO-1")
    assert found.since == opened.ref
    assert why(opened.ref.entry_id) == found


def test_what_is_suppressed_says_how_many_tokens_were_missing() -> None:
    history = session()
    projection = history.project(TIGHT)
    evicted = next(each for each in projection.suppressed() if each.reason == "BUDGET_EVICTION")
    found = why(evicted.item.entity_id)
    assert (found.verdict, found.suppressed_by, found.short_by) == ("suppressed", "BUDGET_EVICTION", evicted.short_by)
    assert found.short_by > 0
    assert f"{found.short_by} more than were left of the budget of 85 tokens" in found.text
    enough = Ruleset(admission="newest_first", context_budget=85 + found.short_by, max_stubs=0)
    assert why(evicted.item.entity_id, enough).verdict == "visible"
    oldest = why("T-01")
    assert (oldest.verdict, oldest.suppressed_by) == ("suppressed", "LOW_URGENCY")
    assert "others ranked before it" in oldest.text


def test_what_was_put_off_is_suppressed_whatever_the_budget() -> None:
    found = why("WO-2", Ruleset(admission="newest_first", context_budget=9_999))
    assert (found.verdict, found.form, found.suppressed_by) == ("suppressed", "STUB", "DEFERRED")


def test_what_is_not_live_names_the_event_that_ended_it() -> None:
    history = session()
    ended = {each.entity_id: each.ref for each in history.events if each.kind in ("INTENT_SUPERSEDED", "WO_ABANDONED")}
    for name, by in (("INT-0", "INT-0"), ("T-00", "INT-0"), ("WO-3", "WO-3")):
        found = why(name)
        assert (found.verdict, found.since) == ("not_live", ended[by])
        assert ended[by].entry_id in found.text
    assert why(ended["WO-3"].entry_id) == why("WO-3")


def test_what_is_unreachable_says_where_it_hangs() -> None:
    assert (why("T-p").verdict, "INT-P" in why("T-p").text) == ("unreachable", True)
    assert why("INT-P").verdict == "unreachable"
    assert "never declared" in why("WO-4").text
    assert "belongs to no intent" in why("T-none").text
    history = session()
    history.declare("INT-above", scope="PROJECT")
    history.turn("T-above", "INT-above")
    history.declare("INT-off", "INT-above", scope="PROJECT")
    off = history.add("INTENT_DEFERRED", "INT-off", reason="later")
    history.close("INT-1")
    history.declare("INT-2", "INT-off")
    found = explain("T-above", history.state(), history.project(TIGHT))
    assert (found.verdict, found.since) == ("unreachable", off.ref)
    assert "which is an ancestor of INT-off, which is deferred" in found.text
    history.close("INT-2")
    assert "no intent was active" in explain("T-above", history.state(), history.project(TIGHT)).text


def test_what_could_not_be_says_so() -> None:
    history = session()
    wrong = history.close("INT-0")
    found = explain(wrong.ref.entry_id, history.state(), history.project(TIGHT))
    assert (found.verdict, found.since) == ("invalid", wrong.ref)
    assert "was superseded before" in found.text
    assert explain("T-nowhere", history.state(), history.project(TIGHT)).verdict == "unknown"


def test_a_goal_in_its_shortest_form_says_so() -> None:
    history = History()
    history.add("INTENT_DECLARED", "INT-1", objective="long " * 100)
    for n in range(3):
        history.open(f"WO-{n}", "INT-1")
        history.fail(f"WO-{n}")
    ruleset = Ruleset(admission="newest_first", context_budget=100, max_failed_items=1)
    projection = history.project(ruleset)
    assert "in its shortest form" in explain("INT-1", history.state(), projection).text
    assert "counted" in explain("WO-0", history.state(), projection).text


def test_a_difference_says_what_came_and_went_and_why() -> None:
    history = session()
    before = history.project(TIGHT)
    history.turn("T-07", "INT-1")
    history.add("WO_COMPLETED", "WO-1")
    wide = Ruleset(admission="newest_first", context_budget=90, max_stubs=0)
    after = history.project(wide)
    found = diff_projections(before, after, state=history.state())
    assert {each.entity_id: each.why for each in found.came_in} == {"T-07": "was not eligible before"}
    went = {each.entity_id: each.why for each in found.went_out}
    assert "not live: closed by WO_CLOSED" in went["WO-1"]
    assert all("suppressed" in why for name, why in went.items() if name != "WO-1")
    assert [note.split(":")[0] for note in found.notes] == ["token budget", "ruleset"]
    back = diff_projections(after, before)
    assert {each.entity_id for each in back.came_in} == {each.entity_id for each in found.went_out}
    assert {each.why for each in back.went_out} == {"T-07 is not eligible any more"}
    same = diff_projections(after, after)
    assert (same.came_in, same.went_out, same.notes) == ((), (), ())


def test_everything_at_once_is_what_each_would_be_alone() -> None:
    history = session()
    history.close("INT-0")
    state, projection = history.state(), history.project(TIGHT)
    found = list(explain_all(state, projection))
    known = {*state.intents, *state.work_orders, *state.turns}
    assert {each.entity_id for each in found} == known
    alone = [explain(each.entity_id, state, projection) for each in found if each.verdict != "invalid"]
    assert [each for each in found if each.verdict != "invalid"] == alone
    assert found[-1] == explain(history.events[-1].ref.entry_id, state, projection)
