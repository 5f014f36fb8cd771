"""An object in place of a reply's text: validated, repaired, retried, streamed and replayed (docs/turn.md)."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import BaseModel, Field, field_validator

from kitchener import RuntimeConfig, tool
from kitchener.errors import CallerError, IdempotencyConflict, InvalidOutput
from kitchener.records import events
from kitchener.records.entries.execution import FinishReason
from kitchener.records.prompt import PromptRequest, PromptResponse
from kitchener.records.turn import TextDelta, TextRetracted, TurnCompleted, TurnResult
from kitchener.replaying import read_prompts, replay_session
from kitchener.replaying.comparison import first_difference
from kitchener.runtime import open_runtime
from kitchener.testing import ScriptedProvider, use_tool
from tests.acceptance.stack import QUESTION, QUICK, read_all, scripted_config
from tests.shared.payloads import payload_of

Said = Any


class Trip(BaseModel):
    """A journey."""

    city: str
    days: int = Field(ge=1, description="How long")

    @field_validator("city")
    @classmethod
    def _known(cls, city: str) -> str:
        if city == "Atlantis":
            raise ValueError("there is no such city")
        return city


SCHEMA: Mapping[str, Any] = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}


def model(*answers: Said) -> ScriptedProvider:
    """Classifies every message as a question, and gives these answers to replies, the last one for ever."""
    left = list(answers)

    def answer(request: PromptRequest) -> Said:
        if request.wo_type == "classify":
            return QUESTION
        return left.pop(0) if len(left) > 1 else left[0]

    return ScriptedProvider(answer)


def replies(provider: ScriptedProvider) -> list[PromptRequest]:
    """What was asked for replies."""
    return [each for each in provider.requests if each.wo_type == "synthesize"]


async def ask(root: Path, provider: ScriptedProvider, output: Any, **options: Any) -> tuple[TurnResult, RuntimeConfig]:
    """One turn that asks for an object; it replays identical, and its requests can be rebuilt."""
    agent, tools = options.pop("agent", {}), options.pop("tools", ())
    config = scripted_config(root, **agent)
    async with open_runtime(config, providers={"scripted": provider}, tools=tools) as runtime:
        with anyio.fail_after(10):
            result = await runtime.supervisor().handle_turn("Where to?", subject_id="ada", output=output, **options)
        (completed,) = await read_all(runtime.ledgers().ho2m, entry_type=events.TURN_COMPLETED)
    again = TurnResult.from_payload(completed.payload)
    assert again.output == (result.output.model_dump() if isinstance(result.output, BaseModel) else result.output)
    report = await replay_session(result.session_id, config=config, tools=tools)
    assert report.is_identical, report.text()
    prompts = await read_prompts(result.turn_id, config=config)
    assert prompts.problem is None
    assert all(call.is_verified for call in prompts.calls)
    assert len(prompts.calls) == len(provider.requests)
    return result, config


@pytest.mark.parametrize(
    "text",
    [
        '{"city": "Rome", "days": 3}',
        '```json\n{"city":"Rome","days":3}\n```',
        '\n {"days": 3,\n "city": "Rome"}\n',
        'Sure!\n{"city": "Rome", "days": 3}',
        'Here is your trip:\n\n```json\n{"city": "Rome",\n "days": 3}\n```\n\nShall I book it?',
    ],
)
async def test_a_model_gives_an_instance_and_its_text(tmp_path: Path, text: str) -> None:
    """The reply is the object's text, as the model wrote it."""
    provider = model(text)
    result, _ = await ask(tmp_path, provider, Trip)
    assert result.output == Trip(city="Rome", days=3)
    assert json.loads(result.response) == {"city": "Rome", "days": 3}
    assert result.response in text
    (request,) = replies(provider)
    assert request.output_schema == Trip.model_json_schema()
    assert "How long" not in request.messages[0].content
    assert '"description":"How long"' in request.messages[-1].content


async def test_a_schema_gives_a_dict(tmp_path: Path) -> None:
    result, _ = await ask(tmp_path, model({"n": 7, "more": [1]}), SCHEMA)
    assert result.output == {"n": 7, "more": [1]}
    assert (result.degraded, result.quality_gate_passed) == (False, True)


async def test_without_an_object_asked_for_there_is_none(tmp_path: Path) -> None:
    result, _ = await ask(tmp_path, model('{"n": 7}'), None)
    assert (result.output, result.response) == (None, '{"n": 7}')


@pytest.mark.parametrize(
    "broken",
    [
        "no JSON",
        '{"city": "Rome"',
        {"city": "Rome"},
        {"city": "Rome", "days": "three"},
        "[]",
    ],
)
async def test_what_does_not_fit_the_schema_is_repaired_once(tmp_path: Path, broken: Said) -> None:
    provider = model(broken, {"city": "Rome", "days": 3})
    result, _ = await ask(tmp_path, provider, Trip)
    assert result.output == Trip(city="Rome", days=3)
    _, repair = replies(provider)
    assert "cannot be used" in repair.messages[-1].content
    assert "How long" not in repair.messages[-1].content, "a small model takes what a schema describes for a value"
    assert len(result.wo_chain_summary) == 2


ROME = '{"city": "Rome", "days": 3}'


@pytest.mark.parametrize(
    ("answer", "ends"),
    [
        (f'Either {ROME} or {{"city": "Bari", "days": 3}}', "stop"),
        (f'{ROME}\n{{"city": "Bari", "days": ', "stop"),
        (f"I cannot tell: you wrote {ROME}, and that is not a trip.", "stop"),
        (f"Sure! The first is\n[\n{ROME}\n]", "stop"),
        (f"<think>\n{ROME}\n</think>\nI cannot say.", "stop"),
        (f"I must not answer. You wrote\n{ROME}\n", "content_filter"),
        (f"Here are two:\n{ROME}\n", "length"),
    ],
)
async def test_object_that_may_not_be_the_answer_is_not_read(tmp_path: Path, answer: str, ends: FinishReason) -> None:
    """A quoted one, one of several, or the only one of an answer that was cut."""

    class Ending(ScriptedProvider):
        async def complete(self, request: PromptRequest) -> PromptResponse:
            response = await super().complete(request)
            return replace(response, finish_reason=ends) if response.text == answer else response

    answers: Iterator[Said] = iter([answer, {"city": "Oslo", "days": 9}])
    provider = Ending(lambda request: QUESTION if request.wo_type == "classify" else next(answers))
    result, _ = await ask(tmp_path, provider, Trip)
    assert result.output == Trip(city="Oslo", days=9)


class Cut(ScriptedProvider):
    """Says of every answer that does not end that it was cut at `max_tokens`."""

    async def complete(self, request: PromptRequest) -> PromptResponse:
        response = await super().complete(request)
        return response if response.text.endswith("}") else replace(response, finish_reason="length")


async def test_object_that_was_cut_is_repaired_by_a_shorter_one(tmp_path: Path) -> None:
    """What the model is told is the cause, which a parser's error does not name."""
    answers: Iterator[Said] = iter(['{"city": "Rome, the eternal city, where all ro', {"city": "Rome", "days": 3}])
    provider = Cut(lambda request: QUESTION if request.wo_type == "classify" else next(answers))
    result, _ = await ask(tmp_path, provider, Trip)
    assert result.output == Trip(city="Rome", days=3)
    _, repair = replies(provider)
    assert "too long: it was cut after 11 tokens" in repair.messages[-1].content
    assert "JSON:" not in repair.messages[-1].content


async def test_an_object_that_never_fits_is_retried_and_then_told(tmp_path: Path) -> None:
    """The repair of each attempt, and the retries of the quality gate, are those of any reply."""
    provider = model("no JSON")
    result, _ = await ask(tmp_path, provider, Trip, agent={"max_retries": 1})
    assert len(replies(provider)) == 4
    assert (result.output, result.degraded) == (None, True)
    assert result.error is not None
    assert result.error.kind == "QUALITY_GATE"
    told = "no acceptable reply after 2 attempts: neither the reply nor its repair fits the schema that its caller asks for: "
    assert result.error.message.startswith(told)


@pytest.mark.parametrize(
    ("never", "why"),
    [
        ({"city": "Rome", "days": "three"}, 'days: "three" is not of type "integer"'),
        ({"city": "Rome", "days": 0}, "days: 0 is less than the minimum of 1"),
        ({"days": 3}, '"city" is a required property'),
        ("no JSON", "the answer is not JSON"),
        ({"city": "Atlantis", "days": 3}, "city: Value error, there is no such city"),
    ],
)
async def test_the_error_says_which_field_never_fitted(tmp_path: Path, never: Said, why: str) -> None:
    """Regression: it said that there is no output, and only the ledger had the field."""
    result, _ = await ask(tmp_path, model(never), Trip, agent={"max_retries": 1})
    assert result.error is not None
    assert result.error.message.startswith("no acceptable reply after 2 attempts: ")
    assert why in result.error.message


def test_the_text_of_such_an_error_is_not_compared() -> None:
    """Turns that were recorded before it named the field replay identical; what it sums up is compared."""

    def completed(kind: str, message: str) -> dict[str, Any]:
        return {"response": "sorry", "error": {"kind": kind, "message": message, "wo_id": "WO-1"}}

    earlier, now = "there is no output", 'days: "three" is not of type "integer"'
    of_replies = completed("QUALITY_GATE", earlier), completed("QUALITY_GATE", now)
    assert first_difference(events.TURN_COMPLETED, *of_replies) is None
    of_tools = completed("TOOL", earlier), completed("TOOL", now)
    assert first_difference(events.TURN_COMPLETED, *of_tools) == ("error.message", earlier, now)
    other = completed("QUALITY_GATE", now) | {"response": "fine"}
    assert first_difference(events.TURN_COMPLETED, completed("QUALITY_GATE", earlier), other) is not None


class Leg(BaseModel):
    """A part of a journey, which is one of two kinds and has a further part."""

    then: "Leg | Stay | None"


class Stay(Leg):
    nights: int = 1


@pytest.mark.timeout(60)
async def test_an_object_that_takes_exponential_time_to_check_is_one_that_does_not_fit(tmp_path: Path) -> None:
    """Regression: a union of models that hold each other doubles the work with each level, and a model decides how many."""
    deep: Any = "no part of a journey"
    for _ in range(50):
        deep = {"then": deep}
    provider = model(deep, {"then": {"then": None, "nights": 2}})
    result, _ = await ask(tmp_path, provider, Leg)
    assert result.output == Leg(then=Stay(then=None, nights=2))
    assert "too many ways to read it" in replies(provider)[1].messages[-1].content


async def test_the_models_own_checks_are_a_criterion_of_the_quality_gate(tmp_path: Path) -> None:
    """The retry is told what was wrong, fenced as data; the value itself is not repeated."""
    provider = model({"city": "Atlantis", "days": 3}, {"city": "Rome", "days": 3})
    result, _ = await ask(tmp_path, provider, Trip, acceptance=["contains:days"])
    assert result.output == Trip(city="Rome", days=3)
    assert len({each.messages[0] for each in replies(provider)}) == 1
    first, second = (each.messages[-1].content for each in replies(provider))
    assert "no such city" not in first
    _, _, told = second.partition("The last object was refused.")
    assert told.index("<data-") < told.index("city: Value error, there is no such city") < told.index("</data-")
    assert "Atlantis" not in second


async def test_retry_after_an_object_that_does_not_fit_is_told_why(tmp_path: Path) -> None:
    """It would be asked the same again at temperature 0. What the model is shown before the message stays as it was."""
    provider = model({"n": "one"}, {"n": "two"}, {"n": 3})
    result, _ = await ask(tmp_path, provider, SCHEMA)
    assert result.output == {"n": 3}
    first, _, retry = replies(provider)
    assert first.messages[:-1] == retry.messages[:-1]
    _, _, told = retry.messages[-1].content.partition("The last object was refused.")
    assert told.index("<data-") < told.index("neither the reply nor its repair fits") < told.index("</data-")


async def test_objects_and_texts_in_turn_begin_with_the_same_messages(tmp_path: Path) -> None:
    """So what a cache has of a conversation serves the next turn, whatever that one asks for."""
    provider = model("Hello.", {"n": 1}, "Bye.")
    config = scripted_config(tmp_path, context_mode="enforce", classify="rules")
    async with open_runtime(config, providers={"scripted": provider}) as runtime:
        supervisor = runtime.supervisor()
        first = await supervisor.handle_turn("Where to?")
        await supervisor.handle_turn("How many?", session_id=first.session_id, output=SCHEMA, acceptance=["contains:1"])
        await supervisor.handle_turn("And back?", session_id=first.session_id)
    one, two, three = (each.messages[:-1] for each in replies(provider))
    assert one == two[: len(one)] == three[: len(one)]
    assert two == three[: len(two)]


async def test_tools_run_before_the_object(tmp_path: Path) -> None:
    @tool(read_only=True)
    async def look() -> str:
        """Looks."""
        return "Rome, 3 days"

    provider = model(use_tool("look"), {"city": "Rome", "days": 3})
    result, _ = await ask(tmp_path, provider, Trip, tools=[look])
    assert result.output == Trip(city="Rome", days=3)
    assert result.cost_summary["tool_calls"] == 1
    assert [message.role for message in replies(provider)[-1].messages] == ["system", "user", "assistant", "tool"]


async def test_the_object_is_streamed_as_partial_text(tmp_path: Path) -> None:
    provider = model('{"city": "Rome", "days": 3}')
    async with open_runtime(scripted_config(tmp_path), providers={"scripted": provider}) as runtime:
        updates = [each async for each in runtime.supervisor().stream_turn("Where to?", output=Trip)]
    assert [each.text for each in updates if isinstance(each, TextDelta)] == ['{"city": ', '"Rome", ', '"days": ', "3}"]
    assert not any(isinstance(each, TextRetracted) for each in updates)
    assert isinstance(updates[-1], TurnCompleted)
    assert updates[-1].result.output == Trip(city="Rome", days=3)


@pytest.mark.parametrize(
    "answer", ['{"city": "Rome", "days": 3}\n', '\n {"city": "Rome", "days": 3} \n\n', '{"city": "Rome", "days": 3}']
)
async def test_blanks_around_a_streamed_object_are_left_out_and_retract_nothing(tmp_path: Path, answer: str) -> None:
    """Many models end an object with a line break."""
    async with open_runtime(scripted_config(tmp_path), providers={"scripted": model(answer)}) as runtime:
        updates = [each async for each in runtime.supervisor().stream_turn("Where to?", output=Trip)]
    assert "".join(each.text for each in updates if isinstance(each, TextDelta)) == answer.strip()
    assert not any(isinstance(each, TextRetracted) for each in updates)
    assert isinstance(updates[-1], TurnCompleted)
    assert updates[-1].result.response == answer.strip()


async def test_sentences_around_a_streamed_object_are_retracted(tmp_path: Path) -> None:
    answer = 'Sure!\n{"city": "Rome", "days": 3}'
    async with open_runtime(scripted_config(tmp_path), providers={"scripted": model(answer)}) as runtime:
        updates = [each async for each in runtime.supervisor().stream_turn("Where to?", output=Trip)]
    retracted = next(n for n, each in enumerate(updates) if isinstance(each, TextRetracted))
    assert "".join([each.text for each in updates[retracted:] if isinstance(each, TextDelta)]) == '{"city": "Rome", "days": 3}'
    assert isinstance(updates[-1], TurnCompleted)
    assert updates[-1].result.response == '{"city": "Rome", "days": 3}'


async def test_the_same_key_gives_the_same_object_also_after_a_restart(tmp_path: Path) -> None:
    """Another object is another message."""
    config = scripted_config(tmp_path)
    options: dict[str, Any] = {"subject_id": "ada", "idempotency_key": "k"}
    for _ in range(2):
        async with open_runtime(config, providers={"scripted": model({"city": "Rome", "days": 3}, "no JSON")}) as runtime:
            result = await runtime.supervisor().handle_turn("Where to?", output=Trip, **options)
            assert result.output == Trip(city="Rome", days=3)
            assert await runtime.supervisor().handle_turn("Where to?", output=Trip, **options) == result
            for other in (SCHEMA, None):
                with pytest.raises(IdempotencyConflict):
                    await runtime.supervisor().handle_turn("Where to?", output=other, **options)


async def test_the_schema_is_recorded_once_before_the_first_turn_that_names_it(tmp_path: Path) -> None:
    config = scripted_config(tmp_path, ledger=QUICK.model_copy(update={"seal": False}))
    for _ in range(2):
        async with open_runtime(config, providers={"scripted": model({"n": 7})}) as runtime:
            for _ in range(2):
                await runtime.supervisor().handle_turn("hello", subject_id="ada", output=SCHEMA)
            entries = await read_all(runtime.ledgers().ho2m)
            sources = [each async for each in runtime.ledgers().ho2m.read(entry_type=events.SOURCE_RECORDED)]
    recorded = [each for each in sources if each.payload["kind"] == "output_schema"]
    named = [each for each in entries if "output_schema" in each.payload]
    assert [each.payload["hash"] for each in recorded] == list({each.payload["output_schema"] for each in named})
    assert json.loads(payload_of(recorded[0])["text"]) == SCHEMA
    assert len(named) == 4
    assert recorded[0].seq < named[0].seq


async def test_another_schema_is_another_request(tmp_path: Path) -> None:
    """Also if it differs only in what the model is not shown twice: the schema that goes with the request."""
    hashes = set[str]()
    for number, title in enumerate("abb"):
        config = scripted_config(tmp_path / str(number), ledger=QUICK.model_copy(update={"seal": False}))
        async with open_runtime(config, providers={"scripted": model({"n": 7})}) as runtime:
            await runtime.supervisor().handle_turn("hello", output={**SCHEMA, "title": title})
            calls = await read_all(runtime.ledgers().ho1m, entry_type=events.LLM_CALL)
            hashes.add(payload_of(calls[-1])["request_hash"])
    assert len(hashes) >= 2


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("Trip", "expected a JSON schema of an object, or a class derived from pydantic.BaseModel"),
        (Trip(city="Rome", days=1), "expected a JSON schema"),
        (int, "expected a JSON schema"),
        (BaseModel, "expected a JSON schema"),
        ({"type": "array"}, "`type` = 'array'"),
        ({"type": "objekt"}, "stands by itself"),
        ({"$ref": "http://127.0.0.1:9/x"}, "lies outside"),
        ({"title": "x" * 70_000}, "expected at most 65,536"),
        ({"title": "x" * 70_000, "type": "objekt"}, "expected at most 65,536"),  # it is measured before it is compiled
        ({"title": object()}, "found: "),
    ],
)
async def test_what_is_no_object_is_refused_before_anything_starts(tmp_path: Path, output: Any, problem: str) -> None:
    provider = model({"n": 7})
    async with open_runtime(scripted_config(tmp_path), providers={"scripted": provider}) as runtime:
        with pytest.raises(InvalidOutput) as caught:
            await runtime.supervisor().handle_turn("hello", output=output)
        assert isinstance(caught.value, CallerError)
        assert problem in str(caught.value)
        assert await read_all(runtime.ledgers().ho2m, entry_type=events.TURN_STARTED) == []


async def test_two_subjects_at_once_get_their_own_objects(tmp_path: Path) -> None:
    """Different objects in turns that run side by side, one of them without."""
    found = dict[str, Any]()

    def answer(request: PromptRequest) -> Said:
        if request.wo_type == "classify":
            return QUESTION
        names = str((request.output_schema or {}).get("properties"))
        return {"city": "Rome", "days": 3} if "city" in names else {"n": 7} if "'n'" in names else "text"

    async with open_runtime(scripted_config(tmp_path), providers={"scripted": ScriptedProvider(answer)}) as runtime:

        async def one(subject_id: str, output: Any) -> None:
            found[subject_id] = (await runtime.supervisor().handle_turn("hello", subject_id=subject_id, output=output)).output

        async with anyio.create_task_group() as tasks:
            for subject_id, output in (("ada", Trip), ("grace", SCHEMA), ("joan", None)):
                tasks.start_soon(one, subject_id, output)
    assert found == {"ada": Trip(city="Rome", days=3), "grace": {"n": 7}, "joan": None}
