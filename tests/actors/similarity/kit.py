"""Vectors that know a few meanings, and conversations with a runtime that ranks by them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kitchener import HO2Config, Runtime, RuntimeConfig, open_runtime
from kitchener.config import EmbeddingsConfig, LedgerConfig, RouterConfig
from kitchener.context import ProjectionLists, read_chain
from kitchener.ledger import StoredEntry
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import echo

MEANINGS = ("dog puppy rex terrier", "physician doctor hospital anna", "car convertible vehicle", "weather rain storm")
DOG = "Rex, the terrier, slept on the sofa."
QUESTION = "What do I call my puppy?"
"""Shares no word with `DOG`, and its meaning."""
CHATTER = tuple(f"Note number {number} is about nothing at all." for number in range(8))


class Meanings:
    """An `EmbeddingProvider` that counts the words of each meaning. `before` runs before each answer."""

    model_id = "meanings/1"

    def __init__(self, before: Callable[[Sequence[str]], Awaitable[None]] | None = None) -> None:
        self.calls: list[list[str]] = []
        self.before = before
        self.answer: Callable[[Sequence[str]], Any] = lambda texts: [vector(text) for text in texts]

    @property
    def texts(self) -> list[str]:
        """All texts that it was asked for."""
        return [text for call in self.calls for text in call]

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """See `EmbeddingProvider`."""
        self.calls.append(list(texts))
        if self.before is not None:
            await self.before(texts)
        answer: Sequence[Sequence[float]] = self.answer(texts)
        return answer


def vector(text: str) -> list[float]:
    """How many words of each meaning a text has, and a little of everything."""
    said = "".join(each if each.isalnum() else " " for each in text.casefold()).split()
    return [0.1 + sum(word in meaning.split() for word in said) for meaning in MEANINGS]


def config(root: Path, *, agent: dict[str, Any] | None = None, seal: bool = True, **embeddings: Any) -> RuntimeConfig:
    """A small context that shows what ranks highest, and a deadline that no machine's load reaches."""
    shown = {"context_mode": "enforce", "context_budget": 120, "newest_turns": 1, "recent_turns": 0, "recall_scope": "subject"}
    return RuntimeConfig(
        plane_root=str(root),
        ledger=LedgerConfig(durability="os", linger_ms=0, seal=seal),
        router=RouterConfig(default_provider="scripted"),
        agents={"ADMIN": HO2Config.model_validate({**shown, **(agent or {})})},
        embeddings=EmbeddingsConfig.model_validate({"deadline_s": 60.0, **embeddings}),
    )


@asynccontextmanager
async def opened(settings: RuntimeConfig, embeddings: Meanings | None) -> AsyncIterator[Runtime]:
    """A runtime with a scripted model that repeats the message."""
    async with open_runtime(settings, providers={"scripted": ScriptedProvider(echo)}, embeddings=embeddings) as runtime:
        yield runtime


async def say(runtime: Runtime, *messages: str, subject_id: str = "ada", session_id: str | None = None) -> str:
    """Says messages in one session, and returns its id."""
    supervisor = runtime.supervisor()
    session_id = session_id or await supervisor.start_session(subject_id=subject_id)
    for message in messages:
        result = await supervisor.handle_turn(message, session_id=session_id)
        assert result.error is None, result.error
    return session_id


async def projections(runtime: Runtime, session_id: str) -> list[StoredEntry]:
    """The projections of a session, oldest first."""
    return [e async for e in runtime.ledgers().context.read(session_id=session_id, entry_type="PROJECTION_COMPUTED")]


async def similarities(runtime: Runtime, session_id: str) -> list[Any]:
    """What the projections of a session have on record about similarity; None: nothing."""
    return [each.payload.get("similarity") for each in await projections(runtime, session_id)]


async def shown(runtime: Runtime, session_id: str) -> str:
    """The texts that the last projection of a session shows: messages and replies, one after another."""
    visible = {ref.entry_id for ref in read_projection(await projections(runtime, session_id)).visible}
    found = [
        e async for e in runtime.ledgers().ho2m.read(entry_type=("TURN_STARTED", "TURN_COMPLETED")) if e.entry_id in visible
    ]
    return "\n".join([str(e.payload.get("user_message") or e.payload.get("response")) for e in found])


def read_projection(entries: Sequence[StoredEntry]) -> ProjectionLists:
    """The lists of the last of a session's projections."""
    known = {each.ref: each.payload for each in entries}
    return read_chain(entries[-1].payload, {}, known.__getitem__)
