"""From version 4 of the policy on, what is shown has no labels, stubs and headers that say nothing new."""

from collections.abc import Sequence
from typing import Any

import pytest

from kitchener.context import Item, Projection, Projector, Ruleset, evidence_item, fold, render, resolve_active
from kitchener.context.fold.items import LINE
from tests.context.history import ESTIMATE, SESSION, WORD_RANK, History, entry_ref, hidden, shown

TODAY = "2026-02-20T09:00:00.000000+00:00"
EARLIER = "2026-02-10T10:00:00.000000+00:00"


def elsewhere(*texts: str) -> list[Item]:
    return [
        evidence_item(f"T-f{n}", entry_ref(n), EARLIER, text, ESTIMATE, session_id="SES-0000000f", separator=LINE)
        for n, text in enumerate(texts, 50)
    ]


def project(recalled: Sequence[Item] = (), objective: str = "This conversation", **policy: Any) -> Projection:
    history = History()
    history.add("INTENT_DECLARED", "INT-1", objective=objective, scope="SESSION")
    ruleset = Ruleset(**{"excerpt_tokens": 40, **policy})
    state = fold(history.events, ESTIMATE, SESSION, is_split=ruleset.is_split)
    projector = Projector(ruleset)
    return projector.project(
        state, resolve_active(state, ruleset), ranking=WORD_RANK, message="flute", recalled=recalled, turn_ts=TODAY
    )


def text_of(projection: Projection) -> str:
    return render(projection, ESTIMATE).text


def test_a_recalled_reply_has_a_short_label_and_counts_as_shown() -> None:
    recalled = elsewhere("user: my flute", "assistant: a flute", "assistant: the flute\n> assistant: and not")
    projection = project(recalled)
    assert text_of(projection).split("\n")[1:-1] == ["user: my flute", "AI: a flute", "AI: the flute", "> assistant: and not"]
    older = project(recalled, policy_version=3)
    assert "assistant: a flute" in text_of(older)
    assert projection.tokens_used < older.tokens_used
    assert ESTIMATE(text_of(projection)) <= projection.tokens_used


def test_a_speaker_who_is_called_so_keeps_the_name() -> None:
    assert "\nAssistant Bo: a flute\n" in text_of(project(elsewhere("Assistant Bo: a flute")))


def test_an_excerpt_of_a_recalled_reply_has_the_short_label() -> None:
    (item,) = elsewhere("assistant: " + "The weather was grey that day. " * 9 + "The flute is here. " + "So it was. " * 9)
    (placed,) = [each for each in project([item]).visible if each.item.kind == "evidence"]
    assert placed.item.text.startswith("AI: … ")
    assert placed.item.text.endswith(f"The flute is here. So it was. … [{item.entity_id}]")
    assert placed.item.tokens <= 40


def test_recalled_items_that_do_not_fit_have_no_stubs() -> None:
    recalled = elsewhere("user: flute " + "a b " * 60, "user: flute the silver one that " + "c d " * 60)
    roomy: dict[str, Any] = {"context_budget": 160, "excerpt_tokens": 200}
    assert "[T-f5" in text_of(project(recalled, policy_version=3, **roomy))
    projection = project(recalled, **roomy)
    assert "[T-f5" not in text_of(projection)
    (name,) = hidden(projection)
    assert name in {"T-f50", "T-f51"}
    assert {each.reason for each in projection.suppressed()} == {"BUDGET_EVICTION"}


def test_the_sessions_own_turns_have_stubs_still() -> None:
    history = History()
    history.declare("INT-1")
    for number in range(1, 5):
        history.add("TURN_STARTED", f"T-{number}", user_message="flute " + "word " * 20, session_id=SESSION)
        history.add("TURN_COMPLETED", f"T-{number}", intent_id="INT-1", response="fine", session_id=SESSION)
    state = fold(history.events, ESTIMATE, SESSION, is_split=True)
    stubs = 0
    for budget in range(60, 160, 5):
        ruleset = Ruleset(excerpt_tokens=200, context_budget=budget)
        projector = Projector(ruleset)
        projection = projector.project(state, resolve_active(state, ruleset), ranking=WORD_RANK, message="flute", turn_ts=TODAY)
        stubs += sum(each.form == "STUB" for each in projection.placed)
    assert stubs > 0


def test_the_goal_of_a_bridge_says_nothing_and_is_eligible_still() -> None:
    projection = project()
    assert text_of(projection) == "[today, Fri 2026-02-20]"
    assert shown(projection) == ["INT-1"]
    assert projection.tokens_used == ESTIMATE("[today, Fri 2026-02-20]\n\n")


@pytest.mark.parametrize("policy", [{"policy_version": 3}, {"objective": "A garden"}])
def test_any_other_goal_is_shown(policy: dict[str, Any]) -> None:
    assert text_of(project(**policy)).startswith("Goal: ")
