"""What entries about model calls tell: the attempts of a turn's newest unanswered call, and the tokens of answers."""

from collections.abc import Mapping

import pytest

from kitchener.model_usage import MOST_TOKENS, Usage
from kitchener.records import events
from kitchener.records.attempt_record import BilledAnswer, UnansweredCall, attempt_of, billed_answer

Told = tuple[str, str, Mapping[str, object]]


def failed(wo_id: str, number: int, reason: str = "timeout", *, call: int = 1) -> Told:
    attempt = {"call": call, "attempt": number, "provider_id": "it", "model_id": "m", "route_reason": "default"}
    return wo_id, events.ATTEMPT_FAILED, {**attempt, "reason": reason, "output_begun": False}


def started(wo_id: str, number: int, *, call: int = 1) -> Told:
    return wo_id, events.ATTEMPT_STARTED, failed(wo_id, number, call=call)[2]


ANSWERED: Told = ("WO-1", events.LLM_CALL, {})


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([], ""),
        ([failed("WO-1", 1), ANSWERED], ""),
        ([ANSWERED, started("WO-2", 1)], "attempt 1 at provider 'it' had no answer yet"),
        ([started("WO-1", 1), failed("WO-1", 1, "server")], "attempt 1 at provider 'it' failed: server"),
        (
            [failed("WO-1", 1), failed("WO-1", 2), failed("WO-2", 1, "connection")],
            "attempt 1 at provider 'it' failed: connection",
        ),
        ([failed("WO-1", 2), failed("WO-1", 1, "auth", call=2)], "attempt 1 at provider 'it' failed: auth"),
        (
            [failed("WO-1", number) for number in range(1, 6)],
            "; ".join(f"attempt {number} at provider 'it' failed: timeout" for number in (3, 4, 5)),
        ),
    ],
    ids=["nothing", "answered", "running", "failed", "a work order before", "a call before", "many"],
)
def test_only_the_newest_call_counts_and_only_its_newest_attempts(entries: list[Told], words: str) -> None:
    call = UnansweredCall()
    for each in entries:
        call.take(*each)
    assert call.words == words


COUNTS = {"input_tokens": 5, "output_tokens": 2}


@pytest.mark.parametrize(
    ("more", "usage"),
    [
        ({}, Usage(5, 2)),
        ({"cached_tokens": 0, "cache_write_tokens": 3}, Usage(5, 2, 0, 3)),
        ({"audio_tokens": 3}, Usage(5, 2)),
    ],
    ids=["least", "all", "of a newer version"],
)
def test_the_tokens_of_answers_are_read(more: Mapping[str, int], usage: Usage) -> None:
    """Regression: an unknown count was a TypeError of `session show` and of the first call under `[spending]`."""
    _, kind, payload = failed("WO-1", 1)
    payload = {**payload, "usage": {**COUNTS, **more}}
    attempt = attempt_of(kind, payload)
    assert attempt is not None
    assert attempt.usage == usage
    assert billed_answer(kind, payload) == BilledAnswer("it", "m", usage, False)
    assert billed_answer(events.LLM_CALL, payload) == BilledAnswer("it", "m", usage, True)


@pytest.mark.parametrize(
    "usage",
    [
        None,
        [5, 2],
        "many",
        7,
        {},
        {"input_tokens": 5},
        {**COUNTS, "input_tokens": "5"},
        {**COUNTS, "output_tokens": None},
        {**COUNTS, "input_tokens": -1},
        {**COUNTS, "input_tokens": 1.5},
        {**COUNTS, "input_tokens": MOST_TOKENS + 1},
        {**COUNTS, "cached_tokens": "5"},
    ],
    ids=repr,
)
def test_counts_of_another_program_that_are_none_do_not_count(usage: object) -> None:
    _, kind, payload = failed("WO-1", 1)
    payload = {**payload, "usage": usage}
    attempt = attempt_of(kind, payload)
    assert attempt is not None
    assert attempt.usage is None
    assert billed_answer(kind, payload) is None


@pytest.mark.parametrize("name", ["provider_id", "model_id"])
def test_an_answer_of_an_unknown_model_does_not_count(name: str) -> None:
    _, kind, payload = failed("WO-1", 1)
    assert billed_answer(kind, {**payload, "usage": COUNTS, name: None}) is None
