"""The peer of `peers.py` built on LangGraph: a graph of two nodes, each one model call, saved by its SQLite saver.

Over HTTP the model is LangChain's `ChatOpenAI`. Each step is saved before the next one begins (`durability="sync"`).
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import PydanticOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from measuring import CLASSIFIED, CLASSIFY, INSTRUCTIONS, KEY, REPLY, Classification, Setting, TakeTurn, run


class State(TypedDict):
    """A conversation's history, and what the last message was classified as."""

    messages: Annotated[list[AnyMessage], add_messages]
    label: str


class InstantModel(BaseChatModel):
    """A model that gives one answer at once."""

    answer: str

    @property
    def _llm_type(self) -> str:
        return "instant"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self.answer))])

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return self._generate(messages)


async def classify_at_once(_state: State) -> dict[str, Any]:
    """The first answer, without a model."""
    return {"label": CLASSIFIED.speech_act}


async def reply_at_once(_state: State) -> dict[str, Any]:
    """The second answer, without a model."""
    return {"messages": [AIMessage(REPLY)]}


def models(url: str | None) -> tuple[Runnable[Any, Classification], BaseChatModel]:
    """What classifies and what replies: an endpoint, or at once within the process."""
    if url is None:
        parser = PydanticOutputParser(pydantic_object=Classification)
        return InstantModel(answer=CLASSIFIED.model_dump_json()) | parser, InstantModel(answer=REPLY)
    common = {"model": "m", "base_url": url, "api_key": KEY, "max_retries": 0}
    classifier = ChatOpenAI(**common, disable_streaming=True).with_structured_output(Classification)
    return classifier, ChatOpenAI(**common)


def nodes_with(classifier: Runnable[Any, Classification], model: BaseChatModel) -> tuple[Any, Any]:
    """The two nodes, each with a call of its model."""

    async def classify(state: State) -> dict[str, Any]:
        classified = await classifier.ainvoke([SystemMessage(CLASSIFY), state["messages"][-1]])
        return {"label": classified.speech_act}

    async def reply(state: State) -> dict[str, Any]:
        return {"messages": [await model.ainvoke([SystemMessage(INSTRUCTIONS), *state["messages"]])]}

    return classify, reply


@asynccontextmanager
async def opened(setting: Setting) -> AsyncIterator[TakeTurn]:
    """Compiles the graph with its saver."""
    classify, reply = nodes_with(*models(setting.url)) if setting.has_model else (classify_at_once, reply_at_once)
    build = StateGraph(State)
    build.add_node("classify", classify)
    build.add_node("reply", reply)
    build.add_edge(START, "classify")
    build.add_edge("classify", "reply")
    build.add_edge("reply", END)
    async with AsyncSqliteSaver.from_conn_string(str(setting.root / "checkpoints.sqlite")) as saver:
        graph = build.compile(checkpointer=saver)

        async def take_turn(session_id: str, message: str) -> str:
            thread = {"configurable": {"thread_id": session_id}}
            said = {"messages": [HumanMessage(message)]}
            if not setting.streams:
                result = await graph.ainvoke(said, thread, durability="sync")
                return str(result["messages"][-1].text)
            streamed = graph.astream(said, thread, stream_mode="messages", durability="sync")
            return "".join([str(piece.text) async for piece, about in streamed if about["langgraph_node"] == "reply"])

        yield take_turn


if __name__ == "__main__":
    os.environ.setdefault("LANGSMITH_TRACING", "false")
    run(opened, __doc__)
