"""Answers a message without HO1 if HO1 is broken in a turn: with the program's own function, or by asking the gateway.

`chain.py` decides when, and records that it happened. Explained in `docs/turn.md`.
"""

from collections.abc import Iterable
from typing import Final

from kitchener.actors.turn.services import TurnServices
from kitchener.cancellation import failed_alone
from kitchener.errors import LedgerError
from kitchener.ledger import StoredEntry
from kitchener.logs import get_logger
from kitchener.plain_names import origin_of
from kitchener.records import events
from kitchener.records.entries import AttemptStartedPayload, payload_as
from kitchener.records.tokens import tokens_of_bytes
from kitchener.records.work_order import DirectReply, WorkOrder

NO_REPLY: Final = DirectReply("", None)

logger = get_logger(__name__)


async def reply_without_executor(
    services: TurnServices,
    wo: WorkOrder,
    message: str,
    *,
    deadline: float,
    tokens_left: int | None,
    trace: Iterable[StoredEntry],
) -> DirectReply:
    """Returns the reply of `degraded_call`, else of `direct_call`; an empty one if neither gave a reply.

    Args:
        services: has both calls
        wo: the work order that HO1 failed with
        message: the user's message
        deadline: the turn's deadline, on the event loop's clock, seconds
        tokens_left: tokens left in the turn's budget; None: no limit
        trace: the executor's entries of the turn
    """
    try:
        if services.degraded_call is None:
            return await _ask_gateway(services, wo, message, deadline, tokens_left, trace)
        text = await services.degraded_call(message, session_id=wo.session_id, deadline=deadline)
        text = str.__str__(text).strip()
        text.encode()  # raises for a lone surrogate, which no ledger entry can hold
        return DirectReply(text, None)
    except LedgerError:
        raise
    except BaseException as error:  # a user's function or the gateway: its error must not abort the turn
        if not await failed_alone(error):
            raise
        logger.error("degraded call failed", turn_id=wo.turn_id, error=origin_of(error))
        return NO_REPLY


async def _ask_gateway(
    services: TurnServices, wo: WorkOrder, message: str, deadline: float, tokens_left: int | None, trace: Iterable[StoredEntry]
) -> DirectReply:
    """Asks the gateway for a reply to the message alone, if the turn's budget covers it."""
    call, constants = services.direct_call, services.constants
    needed = tokens_of_bytes(len(message.encode()) + len(constants.instructions.encode())) + services.config.reply_reserve
    if call is None or (tokens_left is not None and tokens_left < needed):
        return NO_REPLY
    limits = constants.steps.synthesize
    timeout_ms = max(0, int((deadline - services.loop_time()) * 1_000)) + 1
    asked = wo.replaced(
        wo_type="synthesize",
        input_context={"user_message": message, "instructions": constants.instructions},
        prior_results=(),
        constraints=limits.replaced(
            timeout_ms=timeout_ms, token_budget=min(limits.token_budget, tokens_left or limits.token_budget)
        ),
    )
    begun = [
        payload_as(AttemptStartedPayload, entry.payload)["call"]
        for entry in trace
        if entry.entity_id == wo.wo_id and entry.entry_type in events.OF_MODEL_CALLS
    ]
    reply = await call(asked, calls_before=max(begun, default=0))
    return DirectReply(reply.text.strip(), reply.cost)
