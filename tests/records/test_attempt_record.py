"""`UnansweredCall` names the attempts of the newest model call of a turn, if no model answered it."""

from collections.abc import Mapping

import pytest

from kitchener.records import events
from kitchener.records.attempt_record import UnansweredCall

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
