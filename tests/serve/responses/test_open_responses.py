"""The cases of the Open Responses compliance suite, with its checks and those of the official types (docs/server.md).

The suite is in no package registry, so its requests and checks are written down here: all that the suite of the specification
of 2026-04-24 sends to `/v1/responses` over HTTP. Its other cases are about WebSockets, an option, and about compaction.
"""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.serve.responses.test_input_items import PNG
from tests.serve.responses.test_responses import PATH, answer_item, asking, send_card, text_of, told
from tests.serve.shared.functions import FLAT, calling, weather_of
from tests.serve.shared.requests import Asked, Client, serving

NUMBERS = ("created_at", "frequency_penalty", "presence_penalty", "temperature", "top_logprobs", "top_p")
TEXTS = ("id", "model", "object", "service_tier", "status", "truncation")
FLAGS = ("background", "parallel_tool_calls", "store")
PRESENT = (
    *("completed_at", "error", "incomplete_details", "instructions", "max_output_tokens", "max_tool_calls", "metadata"),
    *("output", "previous_response_id", "prompt_cache_key", "reasoning", "safety_identifier", "text", "tool_choice", "tools"),
    *("usage", "user"),
)
"""Fields that the specification requires, also where they are null."""
OWN = {"kitchener", "completed_at", "frequency_penalty", "presence_penalty", "store"}
"""Fields that the official types of this version do not have, and the specification or this server does."""

PDF = "data:application/pdf;base64,JVBERi0xLjEKJSVFT0Y="


def message(content: Any, role: str = "user", **more: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content, **more}


CASES: dict[str, list[dict[str, Any]]] = {
    "basic text": [message("Say hello in three words.")],
    "system prompt": [message("You are a pirate.", "system"), message("Say hello.")],
    "image": [
        message(
            [
                {"type": "input_text", "text": "What do you see?"},
                {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"},
            ]
        )
    ],
    "file": [
        message([{"type": "input_text", "text": "Read it."}, {"type": "input_file", "filename": "a.pdf", "file_data": PDF}])
    ],
    "phases of the assistant": [
        message("I should answer with the saved number.", "assistant", phase="commentary"),
        message("The number is four.", "assistant", phase="final_answer"),
        message("Repeat only the number."),
    ],
    "several turns": [
        message("My name is Alice."),
        message("Hello Alice!", "assistant"),
        message("What is my name?"),
    ],
}


@cache
def event_type() -> TypeAdapter[Any]:
    """What validates an event, which takes a tenth of a second to build."""
    return TypeAdapter(ResponseStreamEvent)


def check_response(response: Any) -> None:
    """Fails unless this is a response as the specification and the official types have it."""
    assert not [each for each in (*NUMBERS, *TEXTS, *FLAGS, *PRESENT) if each not in response]
    assert all(type(response[each]) in (int, float) for each in NUMBERS)
    assert all(type(response[each]) is str for each in TEXTS)
    assert all(type(response[each]) is bool for each in FLAGS)
    assert (type(response["completed_at"]) is int) == (response["status"] == "completed")
    assert unknown(Response.model_validate(response)) <= OWN


def unknown(found: Any) -> set[str]:
    """The fields within an object of the official types that they do not know."""
    if isinstance(found, list):
        return set[str]().union(*map(unknown, found))
    if not isinstance(found, BaseModel):
        return set()
    inner = (getattr(found, name) for name in type(found).model_fields)
    return set(found.model_extra or ()).union(*map(unknown, inner))


def check_stream(asked: Asked) -> Any:
    """The response of a stream, all of whose events are as the official types have them."""
    lines = asked.body.decode().split("\n\n")
    names = [each.partition("\n")[0].removeprefix("event: ") for each in lines if each.startswith("event: ")]
    events = told(asked)
    assert names == [each["type"] for each in events]
    for each in events:
        assert unknown(event_type().validate_python(each)) <= OWN, each["type"]
        if "response" in each:
            check_response(each["response"])
    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    return events[-1]["response"]


async def respond(client: Client, said: Any, *, stream: bool, **more: Any) -> Any:
    """A response that was checked."""
    made = await client.ask("POST", PATH, {"model": "ADMIN", "input": said, "stream": stream, **more})
    assert made.status == 200, made.body
    if stream:
        return check_stream(made)
    check_response(made.json)
    return made.json


@pytest.mark.parametrize("stream", [False, True])
async def test_each_case_is_answered_as_the_specification_says(tmp_path: Path, stream: bool) -> None:
    async with serving(tmp_path / "root") as client:
        for name, said in CASES.items():
            response = await respond(client, said, stream=stream)
            assert (response["status"], response["output"][0]["type"]) == ("completed", "message"), name
        last = await respond(client, "Which one?", stream=stream, previous_response_id=response["id"])
        assert last["status"] == "completed"
        assert last["conversation"] == response["conversation"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_function_of_the_client_is_called_and_its_output_is_heard(tmp_path: Path, stream: bool) -> None:
    async with serving(tmp_path / "root", calling(weather_of("Graz"))) as client:
        asked = await respond(client, "What is the weather?", stream=stream, tools=[FLAT])
        (call,) = asked["output"]
        assert (call["type"], call["name"], call["arguments"]) == ("function_call", "get_weather", '{"at":"Graz"}')
        assert (asked["status"], asked["tools"], asked["tool_choice"]) == ("completed", [FLAT], "auto")
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
        done = await respond(client, [output], stream=stream, previous_response_id=asked["id"], tools=[FLAT])
        assert (text_of(done), done["conversation"]) == ("heard sunny", asked["conversation"])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_whole_history_with_a_call_and_its_output_goes_on(tmp_path: Path, stream: bool) -> None:
    async with serving(tmp_path / "root", calling(weather_of("Graz", text="Let me look."))) as client:
        said = [message("What is the weather?")]
        asked = await respond(client, said, stream=stream, tools=[FLAT], tool_choice="required", store=False)
        assert [each["type"] for each in asked["output"]] == ["message", "function_call"]
        assert asked["tool_choice"] == "required"
        output = {"type": "function_call_output", "call_id": asked["output"][1]["call_id"], "output": "sunny"}
        done = await respond(client, [*said, *asked["output"], output], stream=stream, tools=[FLAT], store=False)
        assert (text_of(done), done["conversation"]) == ("heard sunny", asked["conversation"])


@pytest.mark.parametrize("stream", [False, True])
async def test_requests_for_approval_and_what_follows_are_of_the_official_types(tmp_path: Path, stream: bool) -> None:
    async with serving(tmp_path / "root", asking("ada"), tools=[send_card]) as client:
        asked = await respond(client, "a card", stream=stream)
        (_, waiting) = asked["output"]
        done = await respond(client, [answer_item(waiting)], stream=stream, previous_response_id=asked["id"])
        assert "sent to ada" in done["output"][0]["content"][0]["text"]


async def test_a_response_in_the_background_that_is_cancelled_is_of_the_official_type(tmp_path: Path) -> None:
    async with serving(tmp_path / "root", asking("ada"), tools=[send_card]) as client:
        made = (await client.ask("POST", PATH, {"input": "a card", "background": True})).json
        check_response(made)
        check_stream(await client.ask("GET", f"{PATH}/{made['id']}?stream=true"))
        check_response((await client.ask("POST", f"{PATH}/{made['id']}/cancel")).json)
