"""Reads the model calls of a turn that a provider answered, and what they used."""

from collections.abc import Sequence
from dataclasses import dataclass

from kitchener.config import ModelPrice
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.spending import Spending
from kitchener.records import events
from kitchener.records.attempt_record import UnansweredCall
from kitchener.records.entries import ModelCallPayload, UsageMapping, payload_as


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A model call that a provider answered, as its entry says."""

    wo_id: str
    payload: ModelCallPayload

    @property
    def usage(self) -> UsageMapping:
        """Tokens as the provider counted them."""
        return self.payload["usage"]

    def as_json(self) -> dict[str, object]:
        """The call without its text."""
        known = self.payload
        names = ("call", "provider_id", "model_id", "prompt_pack_version", "request_hash", "usage")
        return {"wo_id": self.wo_id, **{name: known.get(name) for name in names}}


async def read_calls(
    paths: LedgerPaths, agent_class: str, session_id: str, turn_id: str
) -> tuple[tuple[AnsweredCall, ...], str]:
    """The answered model calls of a turn, in order, and the attempts of its newest call if no model answered that."""
    calls, newest = list[AnsweredCall](), UnansweredCall()
    async with paths.reader(agent_class, "ho1m") as ho1m:
        if ho1m is None:
            return (), ""
        async for each in ho1m.read(session_id=session_id, entry_type=events.OF_MODEL_CALLS):
            if each.payload.get("turn_id") != turn_id:
                continue
            newest.take(each.entity_id, each.entry_type, each.payload)
            if each.entry_type == events.LLM_CALL:
                calls.append(AnsweredCall(each.entity_id, payload_as(ModelCallPayload, each.payload)))
    return tuple(calls), newest.words


def spent_on(calls: Sequence[AnsweredCall], prices: dict[str, ModelPrice]) -> Spending:
    """What model calls used, as providers counted it."""
    found = Spending()
    for each in calls:
        found.add(each.payload, prices)
    return found
