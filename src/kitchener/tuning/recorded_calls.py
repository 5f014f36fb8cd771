"""Reads the recorded model calls for `routes.py`: what each request asked for, and the attempts of the gateway.

The requests are in the supervisor's ledger, the attempts in the executor's. No sealed field is read.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

from kitchener.gateway.providers.offline import OfflineProvider
from kitchener.ledger import LedgerReader, StoredEntry
from kitchener.records import events
from kitchener.records.attempt_record import attempt_of
from kitchener.records.entries import (
    AttemptStartedPayload,
    ConstraintsMapping,
    ExecutingPayload,
    ModelCallPayload,
    WorkOrderPlannedPayload,
    payload_as,
)
from kitchener.records.prompt import RULES_MODEL, RULES_PROVIDER, Attempt, route_kind
from kitchener.tuning.routes import CallOutcome, PastAttempt, RecordedCall, Tokens

OWN_MODELS: Final[Mapping[str, str]] = {"offline": str(OfflineProvider.traits.model_id), RULES_PROVIDER: RULES_MODEL}
"""The default model of each built-in provider."""
_OF_HO1M: Final = (events.WO_EXECUTING, *events.OF_MODEL_CALLS)


async def read_calls(
    ho1m: LedgerReader, ho2m: LedgerReader | None, session_id: str | None = None, *, seen: Callable[[], object] = lambda: None
) -> AsyncIterator[RecordedCall]:
    """Every model call with a recorded attempt, in the order in which they began.

    Args:
        ho1m: the executor's ledger
        ho2m: the supervisor's ledger, with the plans of work orders. Without a plan, what a request asked for is derived from
            its first route, and its type is `unknown` unless HO1m has it.
        session_id: only this session or pseudo-session of a consolidation; None: all
        seen: called for each entry

    Raises:
        LedgerDamaged: a line does not verify
    """
    # HO1m first: HO2m then already has the plans of all its work orders.
    calls: dict[tuple[str, int], _PartialCall] = {}
    types: dict[str, str] = {}
    async for entry in ho1m.read(session_id=session_id, entry_type=_OF_HO1M):
        seen()
        payload = events.read_payload(entry.entry_type, entry.payload)
        if entry.entry_type == events.WO_EXECUTING:
            types[entry.entity_id] = payload_as(ExecutingPayload, payload)["wo_type"]
            continue
        attempted = payload_as(AttemptStartedPayload, payload)
        number = attempted["call"]
        call = calls.get((entry.entity_id, number))
        if call is None:
            call = calls[entry.entity_id, number] = _PartialCall(entry, number)
        call.is_direct = "governance_violation" in attempted
        if (attempt := attempt_of(entry.entry_type, payload)) is not None:
            call.attempt(attempt)
        if entry.entry_type == events.LLM_CALL:
            call.answer(payload_as(ModelCallPayload, payload))
    plans: dict[str, ConstraintsMapping] = {}
    if ho2m is not None:
        async for entry in ho2m.read(session_id=session_id, entry_type=events.WO_PLANNED):
            seen()
            planned = payload_as(WorkOrderPlannedPayload, entry.payload)
            constraints = planned.get("constraints")
            plans[entry.entity_id] = constraints if isinstance(constraints, dict) else {}
            types[entry.entity_id] = str(planned.get("wo_type", "unknown"))
    for (wo_id, _), call in calls.items():
        if call.tries:
            yield call.recorded_call(types.get(wo_id, "unknown"), plans.get(wo_id))


class _PartialCall:
    """One call whose entries are still being read."""

    def __init__(self, entry: StoredEntry, number: int) -> None:
        payload = events.read_common(entry)
        self._wo_id, self._number = entry.entity_id, number
        self._session_id, self._turn_id = payload["session_id"], payload.get("turn_id")
        self.tries: dict[int, PastAttempt] = {}
        self._tokens: Tokens | None = None
        self._state: CallOutcome = "cut off"
        self.is_direct = False
        """Whether the call was made without HO1."""

    def answer(self, payload: ModelCallPayload) -> None:
        """Records that a model answered."""
        self._state, self._tokens = "answered", Tokens.of(payload["usage"])

    def attempt(self, told: Attempt) -> None:
        """Records that an attempt began or failed. An attempt that only began has no reason."""
        self.tries[told.attempt] = PastAttempt(
            told.provider_id, told.model_id, told.route_reason, told.reason, told.output_begun
        )
        self._state = "cut off" if told.reason is None else "failed"

    def recorded_call(self, wo_type: str, constraints: ConstraintsMapping | None) -> RecordedCall:
        """The call, with what its work order asked for."""
        tries = tuple(self.tries[number] for number in sorted(self.tries))
        asked = _implied(tries[0]) if constraints is None or self.is_direct else constraints
        return RecordedCall(
            wo_id=self._wo_id,
            wo_type=wo_type,
            call=self._number,
            session_id=self._session_id,
            turn_id=self._turn_id,
            provider_id=asked.get("provider_id"),
            model_id=asked.get("model_id"),
            domain_tags=tuple(asked.get("domain_tags") or ()),
            tries=tries,
            state=self._state,
            tokens=self._tokens,
        )


def _implied(first: PastAttempt) -> ConstraintsMapping:
    """What a request asked for, derived from its first route."""
    kind, tag = route_kind(first.route_reason)
    if kind == "explicit":
        return {"provider_id": first.provider_id, "model_id": first.model_id}
    return {"domain_tags": [tag]} if kind == "domain_tag" else {}
