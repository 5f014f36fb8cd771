"""Reads the model calls on record for `routes.py`: what was asked for, and whom the gateway asked.

The first stands in the supervisor's ledger, the second in the executor's. Nothing that is sealed is needed. No lock is taken
and nothing is written.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from kitchener.gateway.providers.offline import OfflineProvider
from kitchener.ledger import LedgerReader, StoredEntry
from kitchener.records import events
from kitchener.tuning.routes import RecordedCall, State, Tokens, Try

OWN_MODELS: Final[Mapping[str, str]] = {"offline": str(OfflineProvider.traits.model_id)}
"""The model of each built-in provider, which answers where nobody names one."""
_OF_HO1M: Final = (events.WO_EXECUTING, events.ATTEMPT_STARTED, events.ATTEMPT_FAILED, events.LLM_CALL)


async def read_calls(
    ho1m: LedgerReader, ho2m: LedgerReader | None, session_id: str | None = None, *, seen: Callable[[], object] = lambda: None
) -> AsyncIterator[RecordedCall]:
    """Every model call for which an attempt is on record, in the order in which they began.

    Args:
        ho1m: the executor's ledger
        ho2m: the supervisor's, where the plans of work orders stand; without it, or without a plan, a request is taken to
            have asked for what its route says
        session_id: only of this session, which may be the pseudo-session of a consolidation; None: all
        seen: called for each entry

    Raises:
        LedgerDamaged: a line is not what was written
    """
    # HO1m first: by then the plan of each of its work orders is in HO2m.
    calls: dict[tuple[str, int], _Call] = {}
    types: dict[str, str] = {}
    async for entry in ho1m.read(session_id=session_id, entry_type=_OF_HO1M):
        seen()
        payload = events.read_payload(entry.entry_type, entry.payload)
        if entry.entry_type == events.WO_EXECUTING:
            types[entry.entity_id] = str(payload.get("wo_type"))
            continue
        key = entry.entity_id, int(payload["call"])
        call = calls.get(key)
        if call is None:
            call = calls[key] = _Call(entry, payload, types.get(entry.entity_id, "unknown"))
        call.take(entry.entry_type, payload)
    plans: dict[str, Mapping[str, Any]] = {}
    if ho2m is not None:
        async for entry in ho2m.read(session_id=session_id, entry_type=events.WO_PLANNED):
            seen()
            constraints = entry.payload.get("constraints")
            plans[entry.entity_id] = constraints if isinstance(constraints, Mapping) else {}
    for (wo_id, _), call in calls.items():
        if call.tries:
            yield call.made(plans.get(wo_id))


class _Call:
    """One call under construction."""

    def __init__(self, entry: StoredEntry, payload: Mapping[str, Any], wo_type: str) -> None:
        self._wo_id, self._wo_type, self._number = entry.entity_id, wo_type, int(payload["call"])
        self._session_id, self._turn_id = str(payload["session_id"]), payload.get("turn_id")
        self.tries: dict[int, Try] = {}
        self._tokens: Tokens | None = None
        self._state: State = "cut off"

    def take(self, entry_type: str, payload: Mapping[str, Any]) -> None:
        """The next entry of the call."""
        if entry_type == events.LLM_CALL:
            self._state, usage = "answered", payload["usage"]
            self._tokens = Tokens(usage["input_tokens"], usage["output_tokens"], usage.get("cached_tokens") or 0)
            return
        number, reason = int(payload["attempt"]), payload.get("reason")
        has_begun = bool(payload.get("output_begun"))
        self.tries[number] = Try(payload["provider_id"], payload["model_id"], payload["route_reason"], reason, has_begun)
        self._state = "cut off" if reason is None else "failed"

    def made(self, constraints: Mapping[str, Any] | None) -> RecordedCall:
        """The call, with what its work order asked for."""
        tries = tuple(self.tries[number] for number in sorted(self.tries))
        asked = _implied(tries[0]) if constraints is None else constraints
        return RecordedCall(
            wo_id=self._wo_id,
            wo_type=self._wo_type,
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


def _implied(first: Try) -> dict[str, Any]:
    """What a request asked for, judging by its first route."""
    kind, _, tag = first.route_reason.partition(":")
    if kind == "explicit":
        return {"provider_id": first.provider_id, "model_id": first.model_id}
    return {"domain_tags": [tag]} if kind == "domain_tag" else {}
