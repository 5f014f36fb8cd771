"""The peer of `peers.py` built on AutoGen core: a supervising agent that asks a working agent twice, all in memory.

Over HTTP the model is AutoGen's `OpenAIChatCompletionClient`. Nothing is written anywhere.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from autogen_core import AgentId, MessageContext, RoutedAgent, SingleThreadedAgentRuntime, message_handler
from autogen_core.models import (
    AssistantMessage,
    ChatCompletionClient,
    CreateResult,
    LLMMessage,
    ModelFamily,
    ModelInfo,
    RequestUsage,
    SystemMessage,
    UserMessage,
)
from autogen_ext.models.openai import OpenAIChatCompletionClient
from measuring import CLASSIFIED, CLASSIFY, INSTRUCTIONS, KEY, REPLY, Classification, Setting, TakeTurn, run

_INFO = ModelInfo(vision=False, function_calling=True, json_output=True, structured_output=True, family=ModelFamily.UNKNOWN)
_FREE = RequestUsage(prompt_tokens=0, completion_tokens=0)


class InstantClient(ChatCompletionClient):
    """A model that answers at once."""

    async def create(self, messages: Sequence[LLMMessage], *, json_output: Any = None, **_: Any) -> CreateResult:
        """A classification where JSON is asked for, else the reply."""
        text = CLASSIFIED.model_dump_json() if json_output else REPLY
        return CreateResult(finish_reason="stop", content=text, usage=_FREE, cached=False)

    async def create_stream(self, messages: Sequence[LLMMessage], **_: Any) -> AsyncGenerator[str | CreateResult, None]:
        """The reply in one piece."""
        yield REPLY

    async def close(self) -> None:
        """Nothing is open."""

    def actual_usage(self) -> RequestUsage:
        """Nothing is counted."""
        return _FREE

    total_usage = actual_usage

    def count_tokens(self, messages: Sequence[LLMMessage], **_: Any) -> int:
        """Nothing is counted."""
        return 0

    remaining_tokens = count_tokens

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """An older name of `model_info`."""
        return _INFO

    @property
    def model_info(self) -> ModelInfo:
        """What the model can do."""
        return _INFO


@dataclass
class Said:
    """What the user said."""

    text: str


@dataclass
class Ask:
    """A model call to be made."""

    kind: str
    text: str
    history: list[tuple[str, str]]


@dataclass
class Answer:
    """What came back."""

    text: str


class Worker(RoutedAgent):
    """Calls the model."""

    def __init__(self, client: ChatCompletionClient | None, *, streams: bool) -> None:
        super().__init__("worker")
        self._client, self._streams = client, streams

    @message_handler
    async def on_ask(self, message: Ask, ctx: MessageContext) -> Answer:
        """One model call."""
        if self._client is None:
            return Answer(CLASSIFIED.model_dump_json() if message.kind == "classify" else REPLY)
        prompt: list[LLMMessage] = [SystemMessage(content=CLASSIFY if message.kind == "classify" else INSTRUCTIONS)]
        for said, answered in message.history:
            prompt += [UserMessage(content=said, source="user"), AssistantMessage(content=answered, source="assistant")]
        prompt.append(UserMessage(content=message.text, source="user"))
        if message.kind == "classify" or not self._streams:
            schema = Classification if message.kind == "classify" else None
            return Answer(str((await self._client.create(prompt, json_output=schema)).content))
        pieces = [each async for each in self._client.create_stream(prompt)]
        return Answer("".join(each for each in pieces if isinstance(each, str)))


class Supervisor(RoutedAgent):
    """Classifies, then replies, and keeps the history."""

    def __init__(self) -> None:
        super().__init__("supervisor")
        self._history: list[tuple[str, str]] = []

    @message_handler
    async def on_said(self, message: Said, ctx: MessageContext) -> Answer:
        """One turn."""
        worker = AgentId("worker", self.id.key)
        classified = await self.send_message(Ask("classify", message.text, []), worker)
        assert Classification.model_validate_json(classified.text).speech_act == "question"
        answer = await self.send_message(Ask("reply", message.text, self._history), worker)
        self._history.append((message.text, answer.text))
        return Answer(answer.text)


@asynccontextmanager
async def opened(setting: Setting) -> AsyncIterator[TakeTurn]:
    """Starts a runtime with both agents."""
    client: ChatCompletionClient | None = None
    if setting.url:
        client = OpenAIChatCompletionClient(model="m", base_url=setting.url, api_key=KEY, model_info=_INFO, max_retries=0)
    elif setting.has_model:
        client = InstantClient()
    runtime = SingleThreadedAgentRuntime()
    await Worker.register(runtime, "worker", lambda: Worker(client, streams=setting.streams))
    await Supervisor.register(runtime, "supervisor", Supervisor)
    runtime.start()

    async def take_turn(session_id: str, message: str) -> str:
        answer = await runtime.send_message(Said(message), AgentId("supervisor", session_id))
        return str(answer.text)

    yield take_turn
    await runtime.stop()
    if client is not None:
        await client.close()


if __name__ == "__main__":
    run(opened, __doc__)
