"""What is going on in a process that is killed: several people in several sessions, a model, tools, memory, and consolidations.

What is said is a function of session and number, so that whoever comes after a crash can say it again with the same idempotency
key. What was asked and what was acknowledged is told on a pipe, one line each:

    ready | end | ask <session> <number> | ack <session> <number> <turn id> <digest of the reply> | unknown <session> <number>
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio

from kitchener.actors.tools.tool import Tool, tool
from kitchener.config import LedgerConfig, RuntimeConfig
from kitchener.errors import OutcomeUnknown
from kitchener.gateway.providers.scripted import ScriptedAnswer
from kitchener.ids import SessionId, memory_namespace
from kitchener.records.prompt import PromptRequest
from kitchener.runtime import Runtime, open_runtime
from kitchener.testing import ScriptedProvider, use_tool
from tests.acceptance.memory.memory_kit import LESSON
from tests.acceptance.stack import scripted_config
from tests.ledger.support import segments_of

SESSIONS: Final = 6
SUBJECTS: Final = 3
EFFECTS: Final = "effects.txt"
"""Beside the ledgers: what the tool with an effect did, one line each time."""
_KINDS: Final = ("go", "tool", "switch", "look", "go", "close")
_RELATIONS: Final = {"switch": "switch", "close": "close"}
_ENDLESS: Final = 1_000_000_000

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Load:
    """One life of the process."""

    root: Path
    """The directory of all ledgers."""
    first: Mapping[int, int]
    """The number of the message with which each session goes on."""
    turns: int | None = None
    """Messages in each session; None: until it dies."""
    is_tiny: bool = False
    """One entry may wait for a commit, so that nearly each is a commit of its own."""
    segment_bytes: int | None = None
    """Size of a ledger's segments, which may be smaller than settings allow; None: no file gets that long."""


def session_of(number: int) -> SessionId:
    """A session's id."""
    return SessionId(f"SES-{number:08x}")


def subject_of(number: int) -> str:
    """Who speaks in a session; each has two."""
    return f"p{number % SUBJECTS}"


def namespaces() -> list[str]:
    """Everybody's memory."""
    return [memory_namespace("ADMIN", f"p{n}") for n in range(SUBJECTS)]


def message_of(session: int, number: int) -> str:
    """What is said: its kind, what it is about, and which it is."""
    kind = _KINDS[(number + session) % len(_KINDS)]
    return f"{kind} d{number // 2 % 50} {session}.{number}"


def reply_of(session: int, number: int) -> str:
    """What the model says to it."""
    return f"re: {message_of(session, number)}"


def digest_of(reply: str) -> str:
    """A reply, short enough for a line."""
    return hashlib.sha256(reply.encode()).hexdigest()[:16]


def model(request: PromptRequest) -> ScriptedAnswer:
    """The model: classifies by the message's first word, asks for tools, and repeats the message."""
    if request.wo_type == "consolidate":
        return LESSON
    message = request.variables["user_message"]
    kind, topic, name = message.split()
    if request.wo_type == "classify":
        said = {
            "speech_act": "command" if kind == "tool" else "question",
            "ambiguity": "low",
            "labels": {"domain": topic},
            "confidence": 0.9,
            "intent_relation": _RELATIONS.get(kind, "continue"),
            "candidate_objective": f"all about {topic}",
        }
        return {**said, "tool_request": {"tool_id": "note", "arguments": {"text": name}}} if kind == "tool" else said
    if kind == "look" and request.call == 1:
        return use_tool("look", about=topic)
    return {"response_text": f"re: {message}"}


def tools_at(root: Path) -> list[Tool[..., Any]]:
    """One tool with an effect outside of all ledgers, and one without."""

    @tool
    def note(text: str) -> str:
        """Writes something down."""
        fd = os.open(root / EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, f"{text}\n".encode())
        finally:
            os.close(fd)
        return "noted"

    @tool(read_only=True)
    def look(about: str) -> str:
        """Looks something up."""
        return f"nothing about {about}"

    return [note, look]


def config_of(load: Load) -> RuntimeConfig:
    """Memory, the Context Authority, small gates, commits without company."""
    settings: dict[str, Any] = {"durability": "fsync", "linger_ms": 0}
    if load.is_tiny:
        settings["max_pending_entries"] = 1
    ledger = LedgerConfig(**settings) if load.segment_bytes is None else segments_of(load.segment_bytes, **settings)
    return scripted_config(
        load.root,
        ledger=ledger,
        ho3_enabled=True,
        ho3_gate_count_threshold=2,
        ho3_gate_session_threshold=2,
        context_mode="enforce",
        intent_mode="classified",
    )


def open_loaded(load: Load, *, latency_s: float = 0.0) -> Any:
    """The runtime under test."""
    provider = ScriptedProvider(model, latency_s=latency_s, record=False)
    return open_runtime(config_of(load), providers={"scripted": provider}, tools=tools_at(load.root))


async def say(runtime: Runtime, session: int, number: int, tell: Tell) -> None:
    """One message, and what became of it."""
    supervisor = runtime.supervisor()
    tell(f"ask {session} {number}")
    await supervisor.start_session(session_of(session), subject_id=subject_of(session))
    try:
        result = await supervisor.handle_turn(
            message_of(session, number), session_id=session_of(session), idempotency_key=f"k{number}"
        )
    except OutcomeUnknown:
        tell(f"unknown {session} {number}")
        return
    if result.error is not None or result.projection_ref is None:
        raise AssertionError(f"turn {result.turn_id} of {message_of(session, number)!r}: {result.error or 'shown nothing'}")
    tell(f"ack {session} {number} {result.turn_id} {digest_of(result.response)}")


async def live(load: Load, tell: Tell) -> None:
    """One life: all sessions at once, each one message after the other."""

    async def converse(runtime: Runtime, session: int, first: int) -> None:
        for number in range(first, first + (load.turns or _ENDLESS)):
            await say(runtime, session, number, tell)

    async with open_loaded(load, latency_s=0.0 if load.turns else 0.001) as runtime:
        tell("ready")
        async with anyio.create_task_group() as tasks:
            for session, first in load.first.items():
                tasks.start_soon(converse, runtime, session, first)
        await runtime.drain()
    tell("end")
