"""The peer of `peers.py` built on LangGraph: a graph of two nodes, each one instant model call, saved by its SQLite saver.

Runs under an interpreter that has `langgraph` and `langgraph-checkpoint-sqlite`. Prints one JSON object.
"""

import argparse
import asyncio
import json
import os
import resource
import tempfile
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

REPLY = "Certainly. I have noted that down and will look into it right away."


class State(TypedDict):
    """A conversation's history, and what the last message was classified as."""

    messages: Annotated[list[AnyMessage], add_messages]
    label: str


async def classify(_state: State) -> dict[str, Any]:
    """The first model call, answered at once."""
    return {"label": "question"}


async def synthesize(_state: State) -> dict[str, Any]:
    """The second model call, answered at once."""
    return {"messages": [AIMessage(REPLY)]}


async def converse(graph: Any, number: int, turns: int, durability: str) -> None:
    """One session of so many turns."""
    thread = {"configurable": {"thread_id": f"session-{number}"}}
    for turn in range(turns):
        said = {"messages": [HumanMessage(f"Message {turn} of session {number}: is there a bus to the beach?")]}
        result = await graph.ainvoke(said, thread, durability=durability)
        assert result["messages"][-1].content == REPLY


async def measure(options: argparse.Namespace) -> float:
    """CPU seconds of all turns, user and system."""
    build = StateGraph(State)
    build.add_node("classify", classify)
    build.add_node("synthesize", synthesize)
    build.add_edge(START, "classify")
    build.add_edge("classify", "synthesize")
    build.add_edge("synthesize", END)
    with tempfile.TemporaryDirectory(dir=options.dir) as root:
        async with AsyncSqliteSaver.from_conn_string(str(Path(root) / "checkpoints.sqlite")) as saver:
            graph = build.compile(checkpointer=saver)
            await converse(graph, -1, 20, options.durability)
            before = resource.getrusage(resource.RUSAGE_SELF)
            async with asyncio.TaskGroup() as tasks:
                for number in range(options.sessions):
                    tasks.create_task(converse(graph, number, options.turns, options.durability))
            after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--durability", default="sync", help="LangGraph's own setting: sync, async or exit (default sync)")
    parser.add_argument("--dir")
    options = parser.parse_args()
    os.environ.setdefault("LANGSMITH_TRACING", "false")
    cpu = asyncio.run(measure(options))
    print(json.dumps({"cpu_us_per_turn": round(cpu / options.sessions / options.turns * 1e6, 1)}))


if __name__ == "__main__":
    main()
