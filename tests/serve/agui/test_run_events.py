"""Any updates of turns become events of a valid run that shows the reply (docs/server.md)."""

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from kitchener.records.entries import CostSummary
from kitchener.records.turn import (
    TextDelta,
    TextRetracted,
    ToolProgress,
    ToolRan,
    ToolStarted,
    TurnCompleted,
    TurnResult,
    TurnUpdate,
    WorkOrderFinished,
    WorkOrderPlanned,
)
from kitchener.serve.agui.run_calls import RequestedCall
from kitchener.serve.agui.run_events import RunEvents
from kitchener.serve.agui.run_input import read_run
from kitchener.serve.problems import Problem
from tests.serve.agui.front_end import FrontEnd, checked, kinds, of_kind

COST = CostSummary(input_tokens=3, output_tokens=2, llm_calls=1, tool_calls=0)
SHOWN: list[dict[str, Any]] = [
    {"id": "u1", "role": "user", "content": "hi"},
    {
        "id": "old",
        "role": "assistant",
        "toolCalls": [{"id": "WO-1.2", "type": "function", "function": {"name": "a", "arguments": "{}"}}],
    },
    {"id": "u2", "role": "user", "content": "and?"},
]


def asked(**more: Any) -> Any:
    return read_run(orjson.dumps({"threadId": "t", "runId": "r", "messages": SHOWN, **more}))


def result_of(reply: str, *pending: str) -> TurnResult:
    return TurnResult(
        response=reply, wo_chain_summary=(), cost_summary=COST, session_id="SES-1", turn_id="T-1", pending_approval=pending
    )


def read(pieces: bytes) -> list[Any]:
    return [orjson.loads(each.removeprefix(b"data: ")) for each in pieces.split(b"\n\n") if each]


def told(*updates: TurnUpdate, waiting: tuple[RequestedCall, ...] = (), **more: Any) -> list[Any]:
    made = RunEvents(asked(**more))
    return checked(read(made.start(1) + b"".join(map(made.add, updates)) + made.finish(2, waiting)))


WORK, TOOLS = st.sampled_from(["WO-1", "WO-2"]), st.sampled_from(["a", "b__c"])
CALLS = st.integers(1, 3)
TEXTS = st.text(st.sampled_from('ab é\ud800\U0001f600\n"\\'), max_size=6)
VALUES = st.none() | st.integers() | TEXTS | st.lists(st.floats(), max_size=2)
ARGUMENTS = st.dictionaries(TEXTS, VALUES, max_size=2)
UPDATES: st.SearchStrategy[TurnUpdate] = st.one_of(
    st.builds(WorkOrderPlanned, WORK, st.sampled_from(["classify", "synthesize"])),
    st.builds(WorkOrderFinished, WORK, st.just("synthesize"), st.sampled_from(["completed", "deferred"])),
    st.builds(ToolStarted, WORK, TOOLS, CALLS, ARGUMENTS),
    st.builds(ToolProgress, WORK, TOOLS, CALLS, st.none() | st.floats(0, 9), st.none(), st.none() | TEXTS),
    st.builds(ToolRan, WORK, TOOLS, CALLS, ARGUMENTS, VALUES, st.none() | TEXTS),
    st.builds(TextDelta, WORK, st.just(1), TEXTS),
    st.builds(TextRetracted, WORK),
    st.builds(TurnCompleted, st.builds(result_of, TEXTS.map(lambda text: f"r{text}"))),
)
REQUESTS = st.lists(st.sampled_from(["WO-1.1", "WO-1.2", "WO-2.3", "WO-9.9"]), max_size=3, unique=True)


@given(st.lists(UPDATES, max_size=25), REQUESTS, REQUESTS, st.sampled_from(["finish", "fail", "cancel"]), st.booleans())
def test_any_updates_are_a_valid_run(
    updates: list[TurnUpdate], answered: list[str], waits: list[str], end: str, tried_again: bool
) -> None:
    left = [{"id": "r:1", "role": "assistant", "content": "cut o"}] if tried_again else []
    made = RunEvents(asked(messages=[*SHOWN, *left]), [(each, "a") for each in answered])
    waiting = [RequestedCall(each, "a", {}, {"id": each, "reason": "tool_call"}) for each in waits]
    started, pieces = made.start(1), b"".join(map(made.add, updates))
    if end == "finish":
        last = made.finish(2, waiting, {"x": 1})
    else:
        last = made.cancel(2) if end == "cancel" else made.fail(Problem(500, "internal_error", "no"))
    events = checked(read(started + pieces + last))
    opened = {each["toolCallId"] for each in of_kind(events, "TOOL_CALL_START")}
    results = [each["toolCallId"] for each in of_kind(events, "TOOL_CALL_RESULT")]
    assert len(results) == len(set(results))
    if end != "fail":
        assert opened - set(results) <= (set(waits) if end == "finish" else set())


@given(st.lists(UPDATES.filter(lambda each: not isinstance(each, TurnCompleted)), max_size=25), TEXTS)
def test_the_front_end_shows_the_reply_and_nothing_else(updates: list[TurnUpdate], reply: str) -> None:
    front = FrontEnd(None, messages=[*SHOWN])  # type: ignore[arg-type]  # it sends nothing here
    front.take(told(*updates, TurnCompleted(result_of(f"r{reply}"))))
    sent = f"r{reply}".encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert "".join(front.said[2:]) == sent
    assert [each["id"] for each in front.messages[:3]] == ["u1", "old", "u2"]


def test_a_reply_that_comes_whole_or_in_pieces_is_one_message() -> None:
    order = ["RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "RUN_FINISHED"]
    pieces = [TextDelta("WO-1", 1, each) for each in ("one ", "", "two")]
    for updates, count in ((pieces, 2), (pieces[:1], 2), ([], 1)):
        events = told(*updates, TurnCompleted(result_of("one two")))
        assert kinds(events) == order
        assert len(of_kind(events, "TEXT_MESSAGE_CONTENT")) == count
        assert "".join(each["delta"] for each in of_kind(events, "TEXT_MESSAGE_CONTENT")) == "one two"


def test_withdrawn_text_is_taken_back_by_a_snapshot_of_all_other_messages() -> None:
    events = told(
        TextDelta("WO-1", 1, "bad"), ToolRan("WO-1", "a", 1, {"x": 1}, 5), TextRetracted("WO-1"), TextDelta("WO-2", 1, "good"),
        TurnCompleted(result_of("good")),
    )  # fmt: skip
    (snapshot,) = of_kind(events, "MESSAGES_SNAPSHOT")
    assert snapshot["messages"][:3] == SHOWN
    call, answer = snapshot["messages"][3:]
    assert (call["toolCalls"][0]["function"], answer["content"]) == ({"name": "a", "arguments": '{"x":1}'}, "5")
    assert "bad" not in str(snapshot)


def test_what_only_the_client_keeps_is_not_told_again() -> None:
    own = [{"id": each, "role": each, "content": {} if each == "activity" else "x"} for each in ("activity", "reasoning")]
    events = told(TextDelta("WO-1", 1, "bad"), TextRetracted("WO-1"), messages=[SHOWN[0], *own, SHOWN[2]])
    (snapshot,) = of_kind(events, "MESSAGES_SNAPSHOT")
    assert snapshot["messages"] == [SHOWN[0], SHOWN[2]]


def test_steps_of_one_type_that_overlap_have_names_of_their_own() -> None:
    events = told(WorkOrderPlanned("WO-1", "synthesize"), WorkOrderPlanned("WO-2", "synthesize"))
    assert [each["stepName"] for each in of_kind(events, "STEP_STARTED")] == ["synthesize", "synthesize WO-2"]
    assert len(of_kind(events, "STEP_FINISHED")) == 2


def test_a_tool_that_asks_has_no_result_until_it_is_answered() -> None:
    updates = (
        ToolStarted("WO-1", "a", 1, {}), ToolRan("WO-1", "a", 1, {}), WorkOrderFinished("WO-1", "synthesize", "deferred"),
        TurnCompleted(result_of("It asks.", "WO-1.1")),
    )  # fmt: skip
    waiting = RequestedCall("WO-1.1", "a", {}, {"id": "WO-1.1", "reason": "input_required"})
    assert of_kind(told(*updates, waiting=(waiting,)), "TOOL_CALL_RESULT") == []
    (null,) = of_kind(told(*updates[:2], TextDelta("WO-1", 1, "so")), "TOOL_CALL_RESULT")
    assert null["content"] == "null"


def test_progress_of_a_tool_is_an_activity_and_no_text() -> None:
    (one,) = of_kind(told(ToolProgress("WO-1", "a", 1, 2.0, 3.0, "file 2")), "ACTIVITY_SNAPSHOT")
    assert one["content"] == {"toolCallId": "WO-1.1", "value": 2.0, "total": 3.0, "message": "file 2"}
