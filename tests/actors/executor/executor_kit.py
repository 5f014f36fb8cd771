"""What the executor's tests stand on: real ledgers in a directory of their own, and a gateway that answers from a list.

The gateway is a second implementation of the protocol that HO1 sees; it keeps the requests it was given.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kitchener.actors.executor.executor import HO1Executor
from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.config import HO2Config, LedgerConfig
from kitchener.errors import ProviderError
from kitchener.ledger import Ledgers, StoredEntry, open_ledgers
from kitchener.model_usage import Usage
from kitchener.records import events
from kitchener.records.entries import WorkOrderType
from kitchener.records.prompt import (
    Attempt,
    OnAttempt,
    PromptRequest,
    PromptResponse,
    StreamItem,
    StreamRestart,
    TextPiece,
    ToolUse,
)
from kitchener.records.ref import Ref
from kitchener.records.turn import UpdateListener
from kitchener.records.work_order import Constraints, WorkOrder

SESSION = "SES-0000000a"
TURN = "T-0000000a-000001"
CREATED = "2026-01-01T00:00:00.000000+00:00"
PLANNED = Ref("HO2M:ADMIN", "E-2026-01-01-000000000007", "sha256:" + "7" * 64)

CLASSIFY: Mapping[str, Any] = {"user_message": "hello", "recent_turns": [], "labels_vocabulary": {}, "tools": []}
SYNTHESIZE: Mapping[str, Any] = {
    "user_message": "hello",
    "assembled_context": {"context_text": "", "context_hash": "sha256:00", "fragments": []},
    "instructions": "Be brief.",
}
VERIFY: Mapping[str, Any] = {"response_text": "Hi.", "acceptance": ["greets"], "user_message": "hello"}
CONSOLIDATE: Mapping[str, Any] = {
    "signal_id": "intent:question",
    "count": 5,
    "session_count": 3,
    "session_ids": ["SES-0000000a", "SES-0000000b", "SES-0000000c"],
    "event_ids": ["EVT-1", "EVT-2", "EVT-3", "EVT-4", "EVT-5"],
    "recent_events": [{"event_id": "EVT-5", "session_id": SESSION, "timestamp": CREATED, "turn_id": TURN, "co_signals": []}],
}
NOTE: Mapping[str, Any] = {
    "bias": "Asks short questions.",
    "category": "interaction_style",
    "salience_weight": 0.6,
    "decay_modifier": 0.9,
    "labels": {"domain": [], "task": []},
    "context_line": "Prefers short answers.",
}
LIBRARY = PromptLibrary.load()


class FrozenClock:
    """A clock that a test moves by hand."""

    def __init__(self) -> None:
        self.now_us = 1_767_225_600_000_000

    def time_us(self) -> int:
        return self.now_us


@dataclass(frozen=True)
class Streamed:
    """An answer that arrives in pieces; a number among them is a restart as that attempt."""

    pieces: Sequence[str | int]
    tool_uses: tuple[ToolUse, ...] = ()


Answer = str | Mapping[str, Any] | ToolUse | tuple[ToolUse, ...] | Streamed | PromptResponse | Exception


class ListGateway:
    """Answers each call with the next answer of a list: text, an object, tools to use, a stream, or an error to raise."""

    def __init__(self, answers: Iterable[Answer]) -> None:
        self._answers = list(answers)
        self.requests: list[PromptRequest] = []
        self.closed_streams = 0

    async def complete(self, request: PromptRequest, *, on_attempt: OnAttempt) -> PromptResponse:
        answer = await self._next(request, on_attempt)
        assert not isinstance(answer, Streamed), "this answer is for a stream"
        return response(answer)

    async def stream(self, request: PromptRequest, *, on_attempt: OnAttempt) -> AsyncIterator[StreamItem]:
        answer = await self._next(request, on_attempt)
        try:
            attempt, text = 1, ""
            if isinstance(answer, Streamed):
                for piece in answer.pieces:
                    if isinstance(piece, int):
                        attempt, text = piece, ""
                        yield StreamRestart(attempt)
                    else:
                        text += piece
                        yield TextPiece(attempt, piece)
                yield response(text, answer.tool_uses)
            else:
                yield response(answer)
        finally:
            self.closed_streams += 1

    async def _next(self, request: PromptRequest, on_attempt: OnAttempt) -> Answer:
        self.requests.append(request)
        await on_attempt(Attempt("started", request.call, 1, "scripted", "m-1", "default"))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            if isinstance(answer, ProviderError):
                failed = Attempt("failed", request.call, 1, "scripted", "m-1", "default", answer.reason, answer.detail)
                await on_attempt(failed)
            raise answer
        return answer


def response(answer: Answer, tool_uses: tuple[ToolUse, ...] = ()) -> PromptResponse:
    """An answer of the list as the gateway gives it."""
    if isinstance(answer, PromptResponse):
        return answer
    structured: dict[str, Any] | None = None
    text = ""
    if isinstance(answer, str):
        text = answer
    elif isinstance(answer, ToolUse):
        tool_uses = (answer,)
    elif isinstance(answer, tuple):
        tool_uses = answer
    elif isinstance(answer, Mapping):
        structured = dict(answer)
    return PromptResponse(
        provider_id="scripted",
        model_id="m-1",
        text=text,
        structured=structured,
        tool_uses=tool_uses,
        usage=Usage(10, 5),
        latency_ms=3,
        finish_reason="tool_use" if tool_uses else "stop",
    )


@dataclass
class Bench:
    """An executor with what it was assembled from."""

    executor: HO1Executor
    ledgers: Ledgers
    gateway: ListGateway
    clock: FrozenClock
    listeners: dict[str, UpdateListener]
    path: Path

    async def entries(self) -> list[StoredEntry]:
        """Everything in HO1's ledger."""
        return [entry async for entry in self.ledgers.ho1m.read()]

    async def types(self) -> list[str]:
        """The types of all entries, in order."""
        return [entry.entry_type for entry in await self.entries()]

    async def payloads(self, entry_type: str) -> list[dict[str, Any]]:
        """The payloads of all entries of one type, in order."""
        return [entry.payload async for entry in self.ledgers.ho1m.read(entry_type=entry_type)]


@asynccontextmanager
async def open_bench(
    path: Path,
    *answers: Answer,
    tools: ToolRegistry | None = None,
    prompts: PromptLibrary = LIBRARY,
    config: HO2Config | None = None,
    policy_version: int = events.POLICY_VERSION,
) -> AsyncIterator[Bench]:
    """An executor over real ledger files in `path`, whose gateway gives these answers in turn."""
    clock, gateway, listeners = FrozenClock(), ListGateway(answers), dict[str, UpdateListener]()
    async with open_ledgers(
        ho1m=path / "ho1m.jsonl",
        ho2m=path / "ho2m.jsonl",
        context=path / "context.jsonl",
        agent_class="ADMIN",
        config=LedgerConfig(durability="os", linger_ms=0),
        clock=clock,
    ) as ledgers:
        executor = HO1Executor(
            ledgers=ledgers,
            gateway=gateway,
            prompts=prompts,
            tools=tools if tools is not None else ToolRegistry(),
            clock=clock,
            config=config or HO2Config(),
            listeners=listeners,
            policy_version=policy_version,
        )
        yield Bench(executor, ledgers, gateway, clock, listeners, path)


CONTRACTS: Mapping[WorkOrderType, str | None] = {
    "classify": "PRC-CLASSIFY-001",
    "synthesize": "PRC-SYNTHESIZE-001",
    "verify": "PRC-VERIFY-001",
    "consolidate": "PRC-CONSOLIDATE-001",
    "tool_call": None,
}
INPUTS: Mapping[WorkOrderType, Mapping[str, Any]] = {
    "classify": CLASSIFY,
    "synthesize": SYNTHESIZE,
    "verify": VERIFY,
    "consolidate": CONSOLIDATE,
}


def work_order(
    wo_type: WorkOrderType,
    input_context: Mapping[str, Any] | None = None,
    *,
    prior_results: Sequence[Mapping[str, Any]] = (),
    **limits: Any,
) -> WorkOrder:
    """A dispatched work order of this type with fitting input, and `limits` as its constraints."""
    limits.setdefault("prompt_contract_id", CONTRACTS[wo_type])
    return WorkOrder.create(
        session_id=SESSION,
        number=1,
        turn_id=TURN,
        wo_type=wo_type,
        created_at=CREATED,
        subject_id="ada",
        input_context=dict(INPUTS[wo_type] if input_context is None else input_context),
        prior_results=tuple(dict(result) for result in prior_results),
        constraints=Constraints(**limits),
    ).dispatched(PLANNED)
