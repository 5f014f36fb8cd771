"""What tests of the doors share about functions that a client runs: a model that calls them, and their definitions."""

import re
from typing import Any, Final

from kitchener import ClientTool
from kitchener.model_usage import Usage
from kitchener.records.prompt import PromptRequest, PromptResponse, ToolUse
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import echo

DATA: Final = re.compile(r"<data-[0-9a-f]+>\n(.*)\n</data", re.DOTALL)
PLACE: Final = {
    "type": "object",
    "properties": {"at": {"type": "string"}},
    "required": ["at"],
    "additionalProperties": False,
}
WEATHER: Final = ClientTool("get_weather", "The weather at a place.", PLACE)
FLAT: Final[dict[str, Any]] = {
    "type": "function",
    "name": "get_weather",
    "description": WEATHER.description,
    "parameters": PLACE,
    "strict": True,
}
"""As the Responses API defines it."""
NESTED: Final[dict[str, Any]] = {
    "type": "function",
    "function": {"name": "get_weather", "description": WEATHER.description, "parameters": PLACE},
}
"""As the Chat Completions API defines it."""


def use_tools(*uses: tuple[str, dict[str, Any]], text: str = "") -> PromptResponse:
    """An answer of a model that calls functions."""
    calls = tuple(ToolUse(f"model-{number}", name, arguments) for number, (name, arguments) in enumerate(uses))
    return PromptResponse(provider_id="scripted", model_id="m", text=text, usage=Usage(1, 1), tool_uses=calls)


def heard(request: PromptRequest) -> list[str]:
    """What the tools said in the loop that a request goes on with, without the words that mark it as data."""
    told = (each.content for each in request.messages if each.role == "tool")
    return [marked[1] if (marked := DATA.search(each)) else each for each in told]


def calling(*rounds: PromptResponse) -> ScriptedProvider:
    """A model that answers the n-th request of each loop with the n-th of these, then with what the tools said.

    It calls nothing at a message that begins with `just`.
    """

    def answer(request: PromptRequest) -> Any:
        number = sum(1 for each in request.messages if each.tool_uses)
        if heard(request) and number >= len(rounds):
            return {"response_text": f"heard {', '.join(heard(request))}"}
        if request.wo_type != "synthesize" or not request.tools or str(request.variables["user_message"]).startswith("just"):
            return echo(request)
        return rounds[number]

    return ScriptedProvider(answer)


def weather_of(*places: str, text: str = "") -> PromptResponse:
    """An answer that asks for the weather at places."""
    return use_tools(*(("get_weather", {"at": each}) for each in places), text=text)
