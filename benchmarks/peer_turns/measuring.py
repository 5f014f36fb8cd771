"""Runs the turns of one peer in many concurrent sessions and prints the CPU time of a turn as one JSON object.

Every script of this folder opens its peer as a function that takes one turn, and hands it to `run`. A turn is two model calls,
classify and reply. Without `--url` both are answered at once within the process, by a model of the peer's own interface; with
it they go to an endpoint over HTTP. The reply is streamed with `--streamed`; classifications never are. With `--no-model` the
code that would call a model has the answers itself, in the peers that have such code: LangGraph and AutoGen. Runs under an
interpreter that has the peer.
"""

import argparse
import asyncio
import json
import resource
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

REPLY = "Certainly. I have noted that down and will look into it right away."
CLASSIFY = "You classify what a user says: what it does, and how ambiguous it is."
INSTRUCTIONS = "You are a helpful assistant."
KEY = "sk-benchmark"
"""The endpoint of the benchmark takes any key."""
_WARM_UP_TURNS = 20


class Classification(BaseModel):
    """What a model says about a message. Each peer asks for it as its documentation shows, by JSON schema."""

    speech_act: Literal["question", "request", "statement", "other"]
    ambiguity: Literal["low", "medium", "high"]
    confidence: float


CLASSIFIED = Classification(speech_act="question", ambiguity="low", confidence=0.9)
"""The classification of a model that answers at once within the process."""


@dataclass(frozen=True)
class Setting:
    """How a peer runs: where it stores its conversations, and how it calls its model."""

    root: Path
    """An empty directory."""
    url: str | None
    """The endpoint's `base_url`; None: the model answers at once within the process."""
    streams: bool
    """Whether the reply is streamed."""
    has_model: bool = True
    """Whether a model is called at all."""


TakeTurn = Callable[[str, str], Awaitable[str]]
"""Takes a session's id and a message, and returns the reply when the turn is over."""


async def _converse(take_turn: TakeTurn, number: int, turns: int) -> None:
    for turn in range(turns):
        reply = await take_turn(f"session-{number}", f"Message {turn} of session {number}: is there a bus to the beach?")
        assert reply == REPLY, f"unexpected reply: {reply!r}"


async def _cpu_s(opened: Callable[[Setting], AbstractAsyncContextManager[TakeTurn]], options: argparse.Namespace) -> float:
    with tempfile.TemporaryDirectory(dir=options.dir) as root:
        async with opened(Setting(Path(root), options.url, options.streamed, not options.no_model)) as take_turn:
            await _converse(take_turn, -1, _WARM_UP_TURNS)
            before = resource.getrusage(resource.RUSAGE_SELF)
            async with asyncio.TaskGroup() as tasks:
                for number in range(options.sessions):
                    tasks.create_task(_converse(take_turn, number, options.turns))
            after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(opened: Callable[[Setting], AbstractAsyncContextManager[TakeTurn]], description: str | None) -> None:
    """Measures a peer and prints the result.

    Args:
        opened: opens the peer for the block and gives the function that takes one turn
        description: the script's docstring
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--url", help="base_url of the endpoint (default: the model answers within the process)")
    parser.add_argument("--streamed", action="store_true", help="with --url: stream the reply")
    parser.add_argument("--no-model", action="store_true", help="without --url: no model is called")
    parser.add_argument("--dir", help="where conversations are stored (default: the system's temporary directory)")
    options = parser.parse_args()
    cpu = asyncio.run(_cpu_s(opened, options))
    print(json.dumps({"cpu_us_per_turn": round(cpu / options.sessions / options.turns * 1e6, 1)}))
