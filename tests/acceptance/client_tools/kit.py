"""A conversation whose client brings tools along and runs them, beside the tools of the desk that the agent class has."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kitchener.model_usage import Usage
from kitchener.records.prompt import PromptRequest, PromptResponse, ToolUse
from kitchener.records.tools.client_tools import ClientTool
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import QUESTION

WEATHER: Final = ClientTool(
    "get_weather",
    "The weather at a place.",
    {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}, "required": ["place"]},
)
SCREEN: Final = ClientTool("set_colour", "Changes the colour of the page.")
PARIS: Final = ("get_weather", {"place": "Paris"})

Round = Sequence[tuple[str, Mapping[str, Any]]]


def model(*rounds: Round, says: str = "") -> ScriptedProvider:
    """A model that asks for the tools of each round in turn, and then says what it was told. It asks for none in a chat."""

    def answer(request: PromptRequest) -> Any:
        if request.wo_type == "classify":
            return QUESTION
        heard = [message.content for message in request.messages if message.role == "tool"]
        past = sum(1 for message in request.messages if message.tool_uses)
        if past < len(rounds) and request.tools and "chat" not in str(request.variables["user_message"]):
            uses = [ToolUse(f"u{past}-{at}", tool_id, dict(given)) for at, (tool_id, given) in enumerate(rounds[past])]
            return PromptResponse(provider_id="scripted", model_id="m", text=says, usage=Usage(5, 5), tool_uses=tuple(uses))
        return {"response_text": "done: " + " | ".join(heard)}

    return ScriptedProvider(answer)
