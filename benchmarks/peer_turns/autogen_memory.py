"""The peer of `peers.py` built on AutoGen core: a supervising agent that asks a working agent twice, all in memory.

Runs under an interpreter that has `autogen-core`. Nothing is written anywhere. Prints one JSON object.
"""

import argparse
import asyncio
import json
import resource
from dataclasses import dataclass

from autogen_core import AgentId, MessageContext, RoutedAgent, SingleThreadedAgentRuntime, message_handler

REPLY = "Certainly. I have noted that down and will look into it right away."


@dataclass
class Said:
    """What the user said."""

    text: str


@dataclass
class Ask:
    """A model call to be made."""

    kind: str
    text: str


@dataclass
class Answer:
    """What came back."""

    text: str


class Worker(RoutedAgent):
    """Calls the model, which answers at once."""

    @message_handler
    async def on_ask(self, message: Ask, ctx: MessageContext) -> Answer:
        """One model call."""
        return Answer("question" if message.kind == "classify" else REPLY)


class Supervisor(RoutedAgent):
    """Classifies, then synthesizes, and keeps the history."""

    def __init__(self) -> None:
        super().__init__("supervisor")
        self._history: list[tuple[str, str]] = []

    @message_handler
    async def on_said(self, message: Said, ctx: MessageContext) -> Answer:
        """One turn."""
        worker = AgentId("worker", self.id.key)
        await self.send_message(Ask("classify", message.text), worker)
        answer = await self.send_message(Ask("synthesize", message.text), worker)
        self._history.append((message.text, answer.text))
        return Answer(answer.text)


async def converse(runtime: SingleThreadedAgentRuntime, number: int, turns: int) -> None:
    """One session of so many turns."""
    supervisor = AgentId("supervisor", str(number))
    for turn in range(turns):
        answer = await runtime.send_message(Said(f"Message {turn} of session {number}"), supervisor)
        assert answer.text == REPLY


async def measure(sessions: int, turns: int) -> float:
    """CPU seconds of all turns, user and system."""
    runtime = SingleThreadedAgentRuntime()
    await Worker.register(runtime, "worker", lambda: Worker("worker"))
    await Supervisor.register(runtime, "supervisor", Supervisor)
    runtime.start()
    await converse(runtime, -1, 20)
    before = resource.getrusage(resource.RUSAGE_SELF)
    async with asyncio.TaskGroup() as tasks:
        for number in range(sessions):
            tasks.create_task(converse(runtime, number, turns))
    after = resource.getrusage(resource.RUSAGE_SELF)
    await runtime.stop()
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    cpu = asyncio.run(measure(options.sessions, options.turns))
    print(json.dumps({"cpu_us_per_turn": round(cpu / options.sessions / options.turns * 1e6, 1)}))


if __name__ == "__main__":
    main()
