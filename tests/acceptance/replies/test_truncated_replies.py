"""A reply that the model could not finish, because it reached its limit of output tokens, says so (docs/turn.md)."""

from pathlib import Path
from typing import Any

from kitchener import tool
from kitchener.records import events
from kitchener.records.turn import TurnCompleted, TurnResult
from kitchener.replaying import replay_session
from kitchener.replaying.comparison import first_difference
from kitchener.runtime import open_runtime
from kitchener.testing import use_tool
from tests.acceptance.stack import QUESTION, CutShort, read_all, scripted_config


@tool(read_only=True)
def weather() -> str:
    """Tell the weather."""
    return "rain"


def model(*answers: Any) -> CutShort:
    """Classifies every message as a question, and gives these answers to replies."""
    left = list(answers)
    return CutShort(lambda request: QUESTION if request.wo_type == "classify" else left.pop(0))


async def turn_of(root: Path, provider: CutShort, **options: Any) -> tuple[TurnResult, dict[str, Any]]:
    """The result of one turn, which replays identical, and the payload that has it on record."""
    output, config = options.pop("output", None), scripted_config(root, **options)
    async with open_runtime(config, providers={"scripted": provider}, tools=[weather]) as runtime:
        supervisor = runtime.supervisor()
        call = {"session_id": await supervisor.start_session(subject_id="ada"), "idempotency_key": "k", "output": output}
        result, again = [await supervisor.handle_turn("hello", **call) for _ in range(2)]
        assert again == result
        (completed,) = await read_all(runtime.ledgers().ho2m, entry_type=events.TURN_COMPLETED)
    report = await replay_session(result.session_id, config=config, tools=[weather])
    assert report.is_identical, report.text()
    return result, dict(completed.payload)


async def test_a_reply_that_was_cut_says_so_and_is_no_failure(tmp_path: Path) -> None:
    result, payload = await turn_of(tmp_path, model("The three reasons are"))
    assert (result.response, result.truncated) == ("The three reasons are", True)
    assert (result.degraded, result.error, result.quality_gate_passed) == (False, None, True)
    assert payload["truncated"] is True


async def test_a_reply_that_a_content_filter_stopped_says_so(tmp_path: Path) -> None:
    """Regression: it was taken for a whole one."""
    model = CutShort(lambda request: QUESTION if request.wo_type == "classify" else "The three reasons are")
    model.reason = "content_filter"
    result, payload = await turn_of(tmp_path, model)
    assert (result.response, result.truncated, result.error) == ("The three reasons are", True, None)
    assert payload["truncated"] is True


async def test_a_whole_reply_has_nothing_more_on_record(tmp_path: Path) -> None:
    result, payload = await turn_of(tmp_path, model("There are three reasons."))
    assert not result.truncated
    assert "truncated" not in payload


async def test_only_the_last_answer_counts_where_the_model_called_a_tool(tmp_path: Path) -> None:
    """What is cut before a call is text beside it and not the reply."""
    result, _ = await turn_of(tmp_path / "whole", model(use_tool("weather"), "It rains."), tools=("weather",))
    assert not result.truncated
    result, _ = await turn_of(tmp_path / "cut", model(use_tool("weather"), "It rains and"), tools=("weather",))
    assert result.truncated


async def test_only_the_reply_that_was_accepted_counts(tmp_path: Path) -> None:
    result, _ = await turn_of(tmp_path, model("Well", "It is a long story."), acceptance=("min_chars:10",))
    assert (result.response, result.truncated) == ("It is a long story.", False)


async def test_an_object_is_whole_if_it_can_be_read(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    result, _ = await turn_of(tmp_path, model('{"n": 7}'), output=schema)
    assert (result.output, result.truncated) == ({"n": 7}, False)


async def test_a_stream_ends_with_it(tmp_path: Path) -> None:
    async with open_runtime(scripted_config(tmp_path), providers={"scripted": model("The three reasons are")}) as runtime:
        updates = [each async for each in runtime.supervisor().stream_turn("hello", subject_id="ada")]
        (completed,) = [each for each in updates if isinstance(each, TurnCompleted)]
        assert completed.result.truncated


def test_a_turn_that_was_recorded_before_results_said_so_replays_identical() -> None:
    """What it follows from is on record and compared: `finish_reason` of the model's answer."""
    before, now = {"response": "a"}, {"response": "a", "truncated": True}
    assert first_difference(events.TURN_COMPLETED, before, now) is None
    assert first_difference(events.LLM_CALL, {"finish_reason": "stop"}, {"finish_reason": "length"}) is not None
