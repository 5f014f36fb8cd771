"""Clients that run functions: the official Python client in a loop, and an agent of another framework (docs/server.md)."""

from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from kitchener.testing import ScriptedProvider
from tests.clients.test_openai_calls import connected
from tests.serve.shared.functions import FLAT, NESTED, calling, weather_of
from tests.serve.shared.requests import serving

# On trio, the HTTP client of the library leaves generators of streams to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SKY = {"Graz": "sun", "Linz": "rain", "Wels": "fog", "Enns": "snow"}
HEARD = "heard sun, rain, fog, snow"


def three_rounds(text: str = "Let me look.") -> ScriptedProvider:
    """A model that asks in three rounds, of which the first has a text and the second two calls."""
    return calling(weather_of("Graz", text=text), weather_of("Linz", "Wels"), weather_of("Enns"))


async def whole(client: AsyncOpenAI, messages: list[Any]) -> Any:
    """The message of a completion."""
    found = await client.chat.completions.create(model="ADMIN", messages=messages, tools=[NESTED])  # type: ignore[list-item]  # a dict
    choice = found.choices[0]
    assert choice.finish_reason == ("tool_calls" if choice.message.tool_calls else "stop")
    return choice.message


async def streamed(client: AsyncOpenAI, messages: list[Any]) -> Any:
    """The message that the client puts together from the chunks of a stream."""
    async with client.chat.completions.stream(model="ADMIN", messages=messages, tools=[NESTED]) as told:  # type: ignore[list-item]  # a dict
        async for _ in told:
            pass
        return (await told.get_final_completion()).choices[0].message


@pytest.mark.parametrize("ask", [whole, streamed])
async def test_the_official_client_loops_over_three_rounds_of_completions(tmp_path: Path, ask: Any) -> None:
    async with serving(tmp_path / "root", three_rounds()) as inside, connected(inside) as (client, _):
        messages: list[Any] = [{"role": "user", "content": "What is the weather?"}]
        while True:
            message = await ask(client, messages)
            messages.append({"role": "assistant", "content": message.content, "tool_calls": message.tool_calls or []})
            if not message.tool_calls:
                break
            messages[-1]["tool_calls"] = [each.model_dump(exclude={"index", "parsed"}) for each in message.tool_calls]
            for call in message.tool_calls:
                place = call.function.arguments.split('"')[3]
                messages.append({"role": "tool", "tool_call_id": call.id, "content": SKY[place]})
        assert message.content == HEARD
        assert [each.turns for each in await inside.runtime.sessions()] == [4]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("keeps", [False, True])
async def test_the_official_client_loops_over_three_rounds_of_responses(tmp_path: Path, keeps: bool, stream: bool) -> None:
    """`keeps`: the client sends all items each time, otherwise the new ones with the response before."""
    async with serving(tmp_path / "root", three_rounds()) as inside, connected(inside) as (client, _):
        said: list[Any] = [{"role": "user", "content": "What is the weather?"}]
        more: dict[str, Any] = {}
        while True:
            asked: dict[str, Any] = {"model": "ADMIN", "input": said, "tools": [FLAT], **more}
            if stream:
                async with client.responses.stream(**asked) as told:
                    names = [each.type async for each in told]
                    response: Any = await told.get_final_response()
                assert ("response.function_call_arguments.done" in names) == (response.output[-1].type == "function_call")
            else:
                response = await client.responses.create(**asked)
            calls = [each for each in response.output if each.type == "function_call"]
            if not calls:
                break
            said = [*said, *(each.model_dump(exclude={"parsed_arguments"}) for each in response.output)] if keeps else []
            more = {} if keeps else {"previous_response_id": response.id}
            for call in calls:
                output = SKY[call.arguments.split('"')[3]]
                said.append({"type": "function_call_output", "call_id": call.call_id, "output": output})
        assert response.output_text == HEARD
        assert [each.turns for each in await inside.runtime.sessions()] == [4]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the framework runs on nothing else
@pytest.mark.parametrize("model_class", [OpenAIChatModel, OpenAIResponsesModel])
async def test_an_agent_of_another_framework_uses_the_server_as_its_model_with_tools_of_its_own(
    tmp_path: Path, model_class: Any
) -> None:
    asked = list[str]()

    def get_weather(at: str) -> str:
        """The weather at a place."""
        asked.append(at)
        return SKY[at]

    # A stream of this framework ends with the first text, so there is none beside the calls.
    async with serving(tmp_path / "root", three_rounds(text="")) as inside, connected(inside) as (client, _):
        agent = Agent(model_class("ADMIN", provider=OpenAIProvider(openai_client=client)), tools=[get_weather])
        found = await agent.run("What is the weather?")
        assert (found.output, sorted(asked)) == (HEARD, sorted(SKY))
        async with agent.run_stream("What is the weather?") as told:
            assert await told.get_output() == HEARD
        assert [each.turns for each in await inside.runtime.sessions()] == [4, 4]
