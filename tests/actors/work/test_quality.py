"""The gate's fixed checks and the acceptance criteria it can judge itself; explained in docs/work-orders.md."""

from typing import Any

import pytest

from kitchener import HO2Config
from kitchener.actors import QualityGate, QualityGateResult
from kitchener.errors import ConfigError
from kitchener.records.outputs import ReplyOutput

GATE = QualityGate(HO2Config())
WO = "WO-SES-00000001-003"


def verdict(output: Any, *criteria: str) -> QualityGateResult:
    return GATE.verify(output, criteria, WO)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (None, "there is no output"),
        ({}, "the output is empty"),
        ({"response_text": "fine", "error": "boom"}, "the output marks an error: boom"),
        ({"error": {"reason": "x"}}, "the output marks an error: {'reason': 'x'}"),
        ({"text": "fine"}, "the output has no response_text"),
        ({"response_text": None}, "the output has no response_text"),
        ({"response_text": ""}, "the reply is empty"),
        ({"response_text": " \n\t\u3000"}, "the reply is empty"),
        ({"response_text": 5}, "the output has no response_text"),
        ({"response_text": ["fine"]}, "the output has no response_text"),
    ],
)
def test_an_output_that_is_no_reply_is_rejected_with_the_reason(output: Any, reason: str) -> None:
    assert verdict(output) == QualityGateResult("reject", reason, WO)
    assert not verdict(output).is_accepted


@pytest.mark.parametrize(
    "output", [{"response_text": "x"}, {"response_text": "x", "error": None}, {"response_text": "x", "n": 1}]
)
def test_an_output_with_text_is_accepted(output: Any) -> None:
    assert verdict(output) == QualityGateResult("accept", "all checks passed", WO)
    assert verdict(output).is_accepted


@pytest.mark.parametrize(
    ("criterion", "text", "is_met"),
    [
        ("min_chars:5", "12345", True),
        ("min_chars:5", "1234", False),
        ("max_chars:5", "12345", True),
        ("max_chars:5", "123456", False),
        ("max_chars:0", "x", False),
        ("contains:bread", "brown bread", True),
        ("contains:bread", "brown Bread", False),
        ("contains:a:b", "a:b", True),
        ("contains:", "anything", False),
        ("not_contains:meat", "brown bread", True),
        ("not_contains:meat", "meat pie", False),
        ("names the price in euros", "it is cheap", False),  # a model's to judge, and none does
        ("min_chars:many", "x", False),
        ("min_chars:-5", "x", False),
        ("min_chars:²", "x", False),
        ("", "x", False),
    ],
)
def test_a_criterion_is_judged_by_its_kind(criterion: str, text: str, is_met: bool) -> None:
    found = verdict({"response_text": text}, criterion)
    assert found.is_accepted == is_met
    assert found.reason == ("all checks passed" if is_met else f"acceptance criterion not met: {criterion}")


def test_all_criteria_that_are_not_met_are_the_reason() -> None:
    found = verdict({"response_text": "short"}, "contains:s", "min_chars:10", "contains:bread")
    assert found.reason == "acceptance criteria not met: min_chars:10; contains:bread"
    assert found.unmet == ("min_chars:10", "contains:bread")


def test_where_a_model_verifies_replies_statements_are_left_to_it() -> None:
    gate = QualityGate(HO2Config(verify_with_model=True))
    output: ReplyOutput = {"response_text": "it is cheap"}
    assert gate.verify(output, ("names the price in euros", "contains:cheap"), WO).is_accepted
    assert gate.verify(output, ("names the price in euros", "min_chars:many"), WO).unmet == ("min_chars:many",)


def test_settings_take_a_statement_only_where_a_model_judges_it() -> None:
    assert HO2Config(acceptance=("names the price",), verify_with_model=True).acceptance == ("names the price",)
    with pytest.raises(ConfigError, match="needs verify_with_model"):
        HO2Config(acceptance=("names the price",))


def test_the_fixed_checks_come_before_any_criterion() -> None:
    assert verdict(None, "contains:bread").reason == "there is no output"


def test_a_number_too_long_for_python_is_no_criterion() -> None:
    assert not verdict({"response_text": "x"}, "max_chars:" + "9" * 5_000).is_accepted
