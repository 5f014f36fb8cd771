"""Which signals and labels a turn gives the memory; explained in docs/memory.md."""

from collections.abc import Mapping
from typing import Any, Final

import pytest

from kitchener.actors.work.plan import UNCLASSIFIED
from kitchener.actors.work.turn_signals import labels_of, signals_of, vocabulary_of
from kitchener.records.entries import WorkOrderType
from kitchener.records.outputs import Classification, ClassifiedLabels
from kitchener.records.work_order import Cost, WorkOrder, WorkOrderError

LOOK, SEND = "look", "send"
"""A tool without effects, and one with."""
OF_A_TURN: Final = {"session_id": "SES-00000001", "turn_id": "T-00000001-000001", "created_at": "2026-01-01T00:00:00Z"}


def ended(wo_type: WorkOrderType, *tools: str, failed: bool = False, number: int = 1) -> WorkOrder:
    """A work order with an end, that used these tools."""
    running = WorkOrder.create(number=number, wo_type=wo_type, **OF_A_TURN).dispatched(None).executing()
    wo = running.completed({"response_text": "x"}, Cost(tool_ids_used=tools, tool_calls=len(tools)), OF_A_TURN["created_at"])
    return wo.failed(WorkOrderError(reason="QUALITY_GATE", detail="no")) if failed else wo


@pytest.mark.parametrize(
    ("classification", "chain", "expected"),
    [
        ({"speech_act": "question"}, [ended("synthesize")], ["intent:question", "outcome:success"]),
        ({"speech_act": "question"}, [ended("classify")], ["intent:question", "outcome:unknown"]),
        ({"speech_act": "question"}, [], ["intent:question", "outcome:unknown"]),
        ({"speech_act": "question"}, [ended("synthesize", failed=True)], ["intent:question", "outcome:failed"]),
        ({}, [ended("synthesize")], ["outcome:success"]),
        ({"speech_act": ""}, [ended("synthesize")], ["outcome:success"]),
        (UNCLASSIFIED, [ended("synthesize")], ["outcome:success"]),
        (dict(UNCLASSIFIED), [ended("synthesize")], ["intent:unknown", "outcome:success"]),  # a model said so
        (
            {"speech_act": "command", "labels": {"task": "t", "domain": "d"}},
            [ended("classify"), ended("tool_call", SEND), ended("synthesize", LOOK, LOOK)],
            ["intent:command", "tool:send", "tool:look", "tool:look", "domain:d", "task:t", "outcome:success"],
        ),
    ],
)
def test_a_turn_gives_signals_of_what_was_asked_for_and_done(
    classification: Classification, chain: list[WorkOrder], expected: list[str]
) -> None:
    assert signals_of(classification, chain) == expected


def test_the_last_attempt_decides_the_outcome_and_all_of_them_used_their_tools() -> None:
    first, second = ended("synthesize", LOOK, failed=True), ended("synthesize", SEND, number=2)
    assert signals_of({}, [first, second]) == ["tool:look", "tool:send", "outcome:success"]
    assert signals_of({}, [second, first]) == ["tool:send", "tool:look", "outcome:failed"]


def test_a_reply_that_the_budget_does_not_cover_was_not_tried() -> None:
    refused = WorkOrder.create(number=2, wo_type="synthesize", **OF_A_TURN).abandoned()
    assert signals_of({}, [ended("classify"), refused]) == ["outcome:unknown"]
    assert signals_of({}, [ended("synthesize", failed=True), refused]) == ["outcome:failed"]


def test_a_verifier_has_no_outcome_of_its_own() -> None:
    assert signals_of({}, [ended("synthesize"), ended("verify", failed=True, number=2)]) == ["outcome:success"]


def test_what_a_turn_was_shown_gives_no_signal() -> None:
    """Only the classification's own fields count: recalled lines and instructions beside them do not."""
    beside = {"assembled_context": {"ho3_biases": ["domain:echo"]}, "domain": "echo", "instructions": "tool:echo"}
    said: Any = {"speech_act": "question", **beside}
    assert signals_of(said, [ended("synthesize")]) == ["intent:question", "outcome:success"]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"domain": "a", "task": "b"}, {"domain": "a", "task": "b"}),
        ({"domain": ["a", "b"], "task": ("c",)}, {"domain": "a", "task": "c"}),
        ({"domain": [], "task": ""}, {}),
        ({"domain": None, "task": 5}, {}),
        ({"domain": [5], "task": [None]}, {}),
        ({"domain": [["a"]], "task": {"a": 1}}, {}),
        ({"other": "a"}, {}),
        ({}, {}),
        (None, {}),
        ("domain", {}),
        (["domain"], {}),
    ],
)
def test_a_turn_has_at_most_one_label_of_a_kind(labels: Any, expected: Mapping[str, str]) -> None:
    assert labels_of({"speech_act": "question", "labels": labels}) == expected


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"domain": "travel", "task": "anything"}, {"domain": "Travel", "task": "anything"}),
        ({"domain": [" TRAVEL ", "x"]}, {"domain": "Travel"}),
        ({"domain": "hiv-positive", "task": ""}, {}),
        ({"domain": ["hiv-positive", "travel"]}, {}),
    ],
)
def test_labels_outside_the_vocabulary_are_none(labels: ClassifiedLabels, expected: dict[str, str]) -> None:
    vocabulary = vocabulary_of({"domain": ("Travel",), "task": ()})
    classification: Classification = {"speech_act": "question", "labels": labels}
    assert labels_of(classification, vocabulary) == expected
    kinds = [each.partition(":")[0] for each in signals_of(classification, [], vocabulary)]
    assert [each for each in kinds if each in ("domain", "task")] == list(expected)
