"""The peer of `peers.py` built on Microsoft Agent Framework: an agent whose sessions are kept by its `FileHistoryProvider`.

The provider reads a session's messages from its file before a run, and appends the run's messages after it; it never syncs.
Over HTTP the model is the framework's `OpenAIChatCompletionClient`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agent_framework import AgentSession, BaseChatClient, ChatResponse, FileHistoryProvider, Message
from agent_framework.openai import OpenAIChatCompletionClient
from measuring import CLASSIFIED, CLASSIFY, INSTRUCTIONS, KEY, REPLY, Classification, Setting, TakeTurn, run


class InstantClient(BaseChatClient):
    """A model that gives one answer at once."""

    def __init__(self, answer: str) -> None:
        super().__init__()
        self._answer = answer

    async def _inner_get_response(self, **_: Any) -> ChatResponse:
        return ChatResponse(messages=[Message(role="assistant", contents=[self._answer])], response_id="r-1")


@asynccontextmanager
async def opened(setting: Setting) -> AsyncIterator[TakeTurn]:
    """Makes both agents, and a store for the sessions of the one that replies."""
    if setting.url:
        classifying = replying = OpenAIChatCompletionClient(model="m", base_url=setting.url, api_key=KEY)
    else:
        classifying, replying = InstantClient(CLASSIFIED.model_dump_json()), InstantClient(REPLY)
    classifier = classifying.as_agent(instructions=CLASSIFY, default_options={"response_format": Classification})
    agent = replying.as_agent(instructions=INSTRUCTIONS, context_providers=[FileHistoryProvider(setting.root)])
    sessions: dict[str, AgentSession] = {}

    async def take_turn(session_id: str, message: str) -> str:
        session = sessions.setdefault(session_id, agent.create_session(session_id=session_id))
        classified = await classifier.run(message)
        assert classified.value.speech_act == "question"
        if not setting.streams:
            return str((await agent.run(message, session=session)).text)
        return "".join([piece.text async for piece in agent.run(message, session=session, stream=True)])

    yield take_turn


if __name__ == "__main__":
    run(opened, __doc__)
