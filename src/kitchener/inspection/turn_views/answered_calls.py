"""Reads the answered model calls of one turn and the tokens that they used, without reading other turns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kitchener.config import ModelPrice
from kitchener.ids import session_of_valid_turn
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.spending import Spending
from kitchener.ledger import LedgerReader, StoredEntry
from kitchener.ledger.format.imported import ImportedEntry
from kitchener.model_usage import UsageMapping
from kitchener.records import events
from kitchener.records.attempt_record import BilledAnswer, UnansweredCall, billed_answer
from kitchener.records.entries import ModelCallPayload, NestedTurn, ToolCallPayload, TurnStartedPayload, payload_as


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A model call that a provider answered, as its entry says."""

    wo_id: str
    recorded: ModelCallPayload

    @property
    def usage(self) -> UsageMapping:
        """Tokens as the provider counted them."""
        return self.recorded["usage"]

    def as_json(self) -> dict[str, object]:
        """The call without its text."""
        known = self.recorded
        names = ("call", "provider_id", "model_id", "prompt_pack_version", "request_hash", "usage")
        return {"wo_id": self.wo_id, **{name: known.get(name) for name in names}}


class TurnCalls(NamedTuple):
    """What a turn asked of models and tools."""

    answered: tuple[AnsweredCall, ...] = ()
    """The answered model calls, in order."""
    waited_for: str = ""
    """The attempts of the newest model call, if no model answered that."""
    billed: tuple[BilledAnswer, ...] = ()
    """The answers whose tokens are on record, and those of failed attempts with them."""
    nested_turns: tuple[NestedTurn, ...] = ()
    """Turns that its tools ran in other sessions."""


async def read_answered_calls(paths: LedgerPaths, agent_class: str, session: Sequence[StoredEntry], turn_id: str) -> TurnCalls:
    """The calls of a turn. Reads the part of HO1m that was written while it ran.

    Args:
        paths: where the ledgers are
        agent_class: the session's
        session: the entries of its session in the supervisor's ledger
        turn_id: the turn
    """
    calls, billed, newest, nested = list[AnsweredCall](), list[BilledAnswer](), UnansweredCall(), list[NestedTurn]()
    async with paths.reader(agent_class, "ho1m") as ho1m:
        if ho1m is None:
            return TurnCalls()
        for each in await read_work(ho1m, session, turn_id):
            if each.entry_type == events.TOOL_CALL:
                nested += payload_as(ToolCallPayload, each.payload).get("nested_turns", ())
                continue
            newest.take(each.entity_id, each.entry_type, each.payload)
            if (answer := billed_answer(each.entry_type, each.payload)) is not None:
                billed.append(answer)
            if each.entry_type == events.LLM_CALL:
                calls.append(AnsweredCall(each.entity_id, payload_as(ModelCallPayload, each.payload)))
    return TurnCalls(tuple(calls), newest.words, tuple(billed), tuple(nested))


async def read_work(ho1m: LedgerReader, session: Sequence[StoredEntry], turn_id: str) -> list[StoredEntry]:
    """The entries of HO1m about the model and tool calls of a turn."""
    after, up_to = _written_during(session, turn_id, ho1m.ledger_id)
    types = (*events.OF_MODEL_CALLS, events.TOOL_CALL)
    found = ho1m.read(session_id=session_of_valid_turn(turn_id), entry_type=types, after_seq=after, up_to_seq=up_to)
    return [each async for each in found if events.read_common(each).get("turn_id") == turn_id]


def _written_during(session: Sequence[StoredEntry], turn_id: str, ledger_id: str) -> tuple[int | None, int | None]:
    """After which number, and up to which one, a ledger has what a turn wrote; None: not known, or there is no end.

    A turn says where the ledgers stood when it began. A completed one has no call under way when the next turn of its session
    begins. After an aborted one a call may still end, so nothing bounds what it wrote.
    """
    starts = [each for each in session if each.entry_type == events.TURN_STARTED]
    place = next((n for n, each in enumerate(starts) if each.entity_id == turn_id), None)
    if place is None:
        return None, None
    ended = any(each.entity_id == turn_id and each.entry_type == events.TURN_COMPLETED for each in session)
    following = starts[place + 1] if ended and place + 1 < len(starts) else None
    return _stood_at(starts[place], ledger_id), _stood_at(following, ledger_id) if following is not None else None


def _stood_at(started: StoredEntry, ledger_id: str) -> int | None:
    if isinstance(started, ImportedEntry):
        return None  # the numbers are those of another root
    positions = payload_as(TurnStartedPayload, started.payload).get("read_positions")
    found = positions.get(ledger_id) if isinstance(positions, Mapping) else None
    return found if isinstance(found, int) else None


def spent_on(answers: Sequence[BilledAnswer], prices: dict[str, ModelPrice]) -> Spending:
    """What answers used, as providers counted it."""
    found = Spending()
    for each in answers:
        found.add(each, prices)
    return found
