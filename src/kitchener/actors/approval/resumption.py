"""Rebuilds the tool loop of a deferred work order from the ledgers, with the answers to its requests.

HO1m has the model's answers and the outcomes of tools; HO2m has the requests and their answers. If a deferred work order
continued an earlier one, its loop begins with the loop of the earlier one. Explained in `docs/approval.md`.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from kitchener.canonical import canonical_bytes
from kitchener.errors import LedgerError
from kitchener.ledger import LedgerGroup, StoredEntry
from kitchener.records import events
from kitchener.records.entries import (
    ApprovalRequestedPayload,
    ApprovalResolvedPayload,
    Json,
    ModelCallPayload,
    ResumesMapping,
    ToolCallPayload,
    opened,
    payload_as,
    text_of,
)
from kitchener.records.parts import StoredPart
from kitchener.records.prompt import ToolUse
from kitchener.records.ref import RefMapping
from kitchener.records.tokens import tokens_of_bytes
from kitchener.records.tools.deferred_loop import ApprovalAnswer, HeardOutcome, PendingCall, Resumption, ToolRound
from kitchener.records.tools.tool_question import ToolAnswer


class ReadResumption(NamedTuple):
    """A deferred tool loop, and the entries that it was read from."""

    resumption: Resumption
    refs: list[RefMapping]
    """The entries of the loop and of the answers."""
    turns: frozenset[str]
    """The turns that made the loop."""


class AnsweredRequest(NamedTuple):
    """A recorded request and its answer."""

    request: ApprovalRequestedPayload
    answer: ApprovalAnswer | None
    """None: the request is open."""
    resolved: ApprovalResolvedPayload | None
    refs: tuple[RefMapping, ...]


async def read_answered_requests(ledgers: LedgerGroup, session_id: str, wo_id: str) -> list[AnsweredRequest]:
    """Returns the requests of a deferred work order, oldest first, each with its first answer."""
    asked: dict[str, AnsweredRequest] = {}
    types = (events.APPROVAL_REQUESTED, events.APPROVAL_RESOLVED)
    async for entry in ledgers.ho2m.read(session_id=session_id, entry_type=types):
        payload, ref = events.read_payload(entry.entry_type, entry.payload), entry.ref.as_mapping()
        if entry.entry_type == events.APPROVAL_REQUESTED:
            request = payload_as(ApprovalRequestedPayload, payload)
            if request.get("wo_id") == wo_id:
                asked[entry.entity_id] = AnsweredRequest(request, None, None, (ref,))
        elif (found := asked.get(entry.entity_id)) is not None and found.resolved is None:
            resolved = payload_as(ApprovalResolvedPayload, payload)
            if resolved.get("wo_id") == wo_id:
                answer = _answer_of(resolved, found.request)
                asked[entry.entity_id] = AnsweredRequest(found.request, answer, resolved, (*found.refs, ref))
    return list(asked.values())


async def read_resumption(ledgers: LedgerGroup, session_id: str, resumes: ResumesMapping) -> ReadResumption:
    """Returns the loop that a turn continues.

    Args:
        ledgers: the ledgers of the agent class
        session_id: the session
        resumes: the deferred work order, as the turn names it

    Raises:
        LedgerError: the loop is not on record
    """
    loop = _Loop()
    for wo_id in resumes["loop"]:
        entries = ledgers.ho1m.read(session_id=session_id, entity_id=wo_id, entry_type=(events.LLM_CALL, events.TOOL_CALL))
        loop.begin(wo_id, [entry async for entry in entries])
        if wo_id == resumes["wo_id"]:
            loop.note_requests()
    if not loop.rounds:
        raise LedgerError(f"work order {resumes['wo_id']} was deferred, but its tool loop is not on record")
    void = frozenset(resumes.get("void", ()))
    answers, refs = dict[int, ApprovalAnswer](), list[RefMapping]()
    for each in await read_answered_requests(ledgers, session_id, resumes["wo_id"]):
        refs += each.refs
        place, answer = loop.place_of_request(each.request["call"]), each.answer
        if answer is None or place is None:
            continue
        if answer.approval_id in void:
            answer = ApprovalAnswer(approval_id=answer.approval_id, decision="cancelled")
        elif answer.given is not None:
            answer = replace(answer, given=ToolAnswer(loop.states.get(place), answer.given.answer))
        answers[place] = answer
    pending = tuple([PendingCall(place=place, answer=answers.get(place)) for place in loop.open])
    resumption = Resumption(
        wo_id=resumes["wo_id"], rounds=tuple(loop.tool_rounds()), pending=pending, tokens=tokens_of_bytes(loop.size)
    )
    return ReadResumption(resumption, [*loop.refs, *refs], frozenset(loop.turns))


async def read_parts(ledgers: LedgerGroup, session_id: str, turns: Container[str]) -> list[tuple[StoredPart, RefMapping]]:
    """Returns the images and files of the messages of some turns, each with its entry."""
    read = ledgers.ho2m.read(session_id=session_id, entry_type=events.PART_ATTACHED)
    found = [entry async for entry in read if events.read_common(entry).get("turn_id") in turns]
    return [(StoredPart.from_payload(each.payload), each.ref.as_mapping()) for each in found]


class _Loop:
    """Builds the rounds of a tool loop, entry by entry."""

    def __init__(self) -> None:
        self.rounds: list[tuple[str, tuple[ToolUse, ...], list[HeardOutcome | None]]] = []
        self.refs: list[RefMapping] = []
        self.states: dict[int, Json] = {}
        """The state that a tool gets back with the answer to its question, by the position of its call."""
        self.open: list[int] = []
        """Positions of the calls of the last round that have no outcome."""
        self.turns = set[str]()
        self.size = 0
        self._places: list[int] = []
        self._before = self._calls = 0
        self._wo_id = ""
        self._asked: dict[int, int] = {}
        self._asked_round = 0

    def begin(self, wo_id: str, entries: Iterable[StoredEntry]) -> None:
        """Adds the entries of the next work order. It counts its calls from 1; the calls that were open come first."""
        self._wo_id, self._places, self._before, self._calls = wo_id, list(self.open), 0, 0
        for entry in entries:
            payload = events.read_payload(entry.entry_type, entry.payload)
            self.size += len(canonical_bytes(payload, at="entry"))
            self.refs.append(entry.ref.as_mapping())
            self.turns.add(events.read_common(entry).get("turn_id", ""))
            if entry.entry_type == events.TOOL_CALL:
                self._hear(payload_as(ToolCallPayload, payload))
            else:
                self._answer(payload_as(ModelCallPayload, payload))

    def note_requests(self) -> None:
        """Notes the requested calls. Call it after the entries of the asking work order, before the entries of later ones."""
        self._asked = {self._before + at: place for at, place in enumerate(self._places, 1)}
        self._asked_round = len(self.rounds)

    def place_of_request(self, call: int) -> int | None:
        """The position of a requested call in the last round; None: the call is in an earlier round by now."""
        return self._asked.get(call) if len(self.rounds) == self._asked_round else None

    def _place_of(self, call: int) -> int:
        """The position in the last round of a call of the last work order."""
        return self._places[call - self._before - 1]

    def tool_rounds(self) -> list[ToolRound]:
        """The rounds that are recorded so far, with the outcomes that are known."""
        return [ToolRound(text=text, uses=uses, outcomes=tuple(outcomes)) for text, uses, outcomes in self.rounds]

    def _answer(self, payload: ModelCallPayload) -> None:
        answer = opened(payload["response"])
        if answer is None or not answer["tool_uses"]:
            return
        uses = tuple(map(ToolUse.of, answer["tool_uses"]))
        self.rounds.append((answer["text"], uses, [None] * len(uses)))
        self._places = self.open = list(range(len(uses)))
        self._before = self._calls
        self.states = {}

    def _hear(self, payload: ToolCallPayload) -> None:
        self._calls = max(self._calls, payload["call"])
        place = self._place_of(payload["call"])
        question = opened(payload.get("question"))
        if question is not None:
            self.states[place] = question.get("state")
            return
        source = payload.get("source") if payload.get("untrusted") else None
        error = text_of(payload["error"]) if "error" in payload else None
        outcomes = self.rounds[-1][2]
        outcomes[place] = HeardOutcome(
            wo_id=self._wo_id,
            call=payload["call"],
            result=opened(payload.get("result")),
            error=error,
            untrusted_source=source,
        )
        self.open = [each for each in self.open if each != place]


def _answer_of(resolved: ApprovalResolvedPayload, request: ApprovalRequestedPayload) -> ApprovalAnswer:
    given: ToolAnswer | None = None
    if resolved["decision"] == "returned":
        given = ToolAnswer(None, opened(resolved.get("answer")))
    elif request["reason"] != "tool_call" and resolved["decision"] == "approved":
        given = ToolAnswer(None, opened(resolved.get("answer", True)))
    arguments: Mapping[str, object] | None = opened(resolved.get("override_args"))
    return ApprovalAnswer(
        approval_id=resolved["approval_id"],
        decision=resolved["decision"],
        arguments=arguments,
        given=given,
        message=text_of(resolved.get("message", "")),
    )
