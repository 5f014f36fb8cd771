"""What the tests of the Context Authority stand on: a model that does as a message says, and a look at what it was shown.

A message is `[word] text`. The word says how the message relates to the intent, or how its turn shall end; without one it goes
on with the intent. So a conversation reads as what it does to the intents.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from kitchener.context import ContextState, ProjectionLists, estimator, fold, make_event, read_chain
from kitchener.errors import ProviderError
from kitchener.ledger import Ledgers, StoredEntry
from kitchener.records import events
from kitchener.records.index_keys import SHARED_INTENTS_KEY
from kitchener.records.prompt import PromptRequest
from kitchener.records.turn import TurnResult
from kitchener.runtime import Runtime
from kitchener.testing import FakeClock, ScriptedProvider
from tests.acceptance.memory.memory_kit import LESSON
from tests.acceptance.stack import QUESTION, open_scripted, read_all
from tests.shared.payloads import payload_of
from tests.shared.prompts import shown_text

SID = "SES-0000000a"
OTHER = "SES-0000000b"
ENFORCE: Mapping[str, Any] = {"context_mode": "enforce", "intent_mode": "classified", "recent_turns": 0}
"""What is shown is what the intent gives; `test_going_on.py` has the newest turns of other intents besides."""
SHADOW: Mapping[str, Any] = {"context_mode": "shadow", "intent_mode": "classified"}
BRIDGE: Mapping[str, Any] = {**ENFORCE, "intent_mode": "bridge"}

_MESSAGE = re.compile(r"\[(\w+)\] *(.*)", re.DOTALL)
_RELATIONS: Mapping[str, Mapping[str, Any]] = {
    "switch": {"intent_relation": "switch"},
    "close": {"intent_relation": "close"},
    "unclear": {"intent_relation": "unclear"},
    "vague": {"intent_relation": "switch", "confidence": 0.3},
    "silent": {},
    "invent": {"intent_relation": "teleport"},
    "ghost": {"intent_relation": "switch", "prior_intent_id": "INT-ffffffffffffffff"},
}


def parts_of(message: str) -> tuple[str, str]:
    """A message's word and its text."""
    found = _MESSAGE.fullmatch(message)
    return (found[1], found[2]) if found is not None else ("", message)


def talk(request: PromptRequest) -> Mapping[str, Any] | BaseException:
    """The model: classifies as the message's word says, and repeats its text."""
    if request.wo_type == "consolidate":
        return LESSON
    word, text = parts_of(request.variables["user_message"])
    if request.wo_type == "classify":
        if word == "deaf":
            return ProviderError("scripted", "refused", "no classification today")
        said = _RELATIONS.get(word, {"intent_relation": "continue"})
        if word == "back":
            said = {"intent_relation": "switch", "prior_intent_id": request.variables.get("prior_intent_id")}
        if word == "silent":
            return {"speech_act": "question"}
        return {**QUESTION, "candidate_objective": text, **said}
    if word in ("fail", "deaf"):
        return ProviderError("scripted", "refused", "the model refuses")
    if word == "empty":
        return {"response_text": ""}
    return {"response_text": f"echo: {text}", **({"completes_intent": True} if word == "done" else {})}


class Talk:
    """A conversation with the agent class ADMIN, one second of its clock after the other."""

    def __init__(self, runtime: Runtime, provider: ScriptedProvider, clock: FakeClock, session_id: str = SID) -> None:
        self.runtime, self.provider, self.clock, self.session_id = runtime, provider, clock, session_id
        self.supervisor = runtime.supervisor()

    @property
    def ledgers(self) -> Ledgers:
        return self.runtime.ledgers()

    async def start(self, session_id: str = SID, subject_id: str = "ada") -> None:
        await self.supervisor.start_session(session_id, subject_id=subject_id)

    async def say(self, *messages: str, session_id: str | None = None) -> TurnResult:
        """Says one thing after the other; the last one's result."""
        result: TurnResult | None = None
        for message in messages:
            self.clock.advance(1)
            with anyio.fail_after(10):
                result = await self.supervisor.handle_turn(message, session_id=session_id or self.session_id)
        assert result is not None
        return result

    async def turns(self, count: int, text: str = "message") -> TurnResult:
        """So many numbered messages."""
        return await self.say(*[f"{text} {n}" for n in range(count)])

    def shown(self) -> Mapping[str, Any]:
        """The assembled context of the last reply that the model was asked for."""
        asked = [each for each in self.provider.requests if each.wo_type == "synthesize"]
        context: Mapping[str, Any] = asked[-1].variables["assembled_context"]
        return context

    def text(self) -> str:
        """Its text, in the order in which the model reads it."""
        return shown_text(self.shown())

    async def intents(self, session_id: str = SID) -> list[StoredEntry]:
        """The life-cycle entries of intents in HO2m."""
        return [e for e in await read_all(self.ledgers.ho2m, session_id=session_id) if e.entry_type.startswith("INTENT_")]

    async def decisions(self, entry_type: str, session_id: str = SID) -> list[StoredEntry]:
        """Entries of one type on the context ledger."""
        return await read_all(self.ledgers.context, session_id=session_id, entry_type=entry_type)

    async def lists(self, session_id: str = SID) -> ProjectionLists:
        """The lists of the last projection, written out."""
        return last_lists(await self.decisions(events.PROJECTION_COMPUTED, session_id))

    async def flags(self) -> list[str]:
        """The kinds of the flags on the context ledger."""
        return [payload_of(entry)["kind"] for entry in await self.decisions(events.CONFLICT_FLAG)]

    async def shared(self) -> list[str]:
        """The intents that the subject's sessions share."""
        found = await read_all(self.ledgers.ho2m, entry_type=events.INTENT_DECLARED)
        return [entry.entity_id for entry in found if entry.payload["scope"] in events.SHARED_SCOPES]

    async def state(self, session_id: str = SID, *, shared_to: int = 0) -> ContextState:
        """The state that the session's entries in HO2m fold to, and those about shared intents up to a position."""
        entries = await read_all(self.ledgers.ho2m, session_id=session_id)
        shared = await read_all(self.ledgers.ho2m, key=SHARED_INTENTS_KEY)
        entries += [entry for entry in shared if entry.seq <= shared_to and entry.session_id != session_id]
        found = [make_event(e.entry_type, e.entity_id, e.timestamp, e.payload, e.ref) for e in entries]
        return fold([each for each in found if each is not None], estimator("utf8/3"), session_id, is_split=True)

    async def kept(self, session_id: str = SID) -> dict[str, Any]:
        """The state that the running session keeps."""
        thread = (await self.supervisor.session(session_id)).thread
        assert thread is not None
        return thread.state.snapshot()


def last_lists(projections: Sequence[StoredEntry]) -> ProjectionLists:
    """The lists of a session's last projection, written out."""
    return read_chain(projections[-1].payload, {}, {entry.ref: entry.payload for entry in projections}.__getitem__)


def actions(entries: Sequence[StoredEntry]) -> list[str]:
    """What happened to intents, without the prefix."""
    return [entry.entry_type.removeprefix("INTENT_") for entry in entries]


_OF_THE_CONFIGURATION = ("ruleset_hash", "config_hash", "trace_hash", "timeout_ms", "duration_ms", "latency_ms", "elapsed_ms")


def without_hashes(value: Any) -> Any:
    """A payload without what differs because the configuration or the clock does."""
    if isinstance(value, Mapping):
        if value.keys() >= {"ledger_id", "entries"}:  # a group of references
            value = {**value, "entries": [entry_id for entry_id, _ in value["entries"]]}
        return {
            key: without_hashes(each)
            for key, each in value.items()
            if key not in _OF_THE_CONFIGURATION and key != "entry_hash" and key != "read_positions"
        }
    return [without_hashes(each) for each in value] if isinstance(value, list) else value


@asynccontextmanager
async def talking(
    root: Path,
    clock: FakeClock | None = None,
    *,
    gate: Callable[[PromptRequest], Awaitable[object]] | None = None,
    **config: Any,
) -> AsyncIterator[Talk]:
    """A conversation in a runtime of its own; the session of before goes on where its ledgers are there already."""
    provider, clock = ScriptedProvider(talk, gate=gate), clock or FakeClock()
    async with open_scripted(root, provider, clock=clock, **config) as runtime:
        conversation = Talk(runtime, provider, clock)
        await conversation.start()
        yield conversation
