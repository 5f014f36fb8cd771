"""Builds the entry that begins a turn, and writes it as the session's next entry. Explained in `docs/turn.md`."""

from collections.abc import Mapping

from kitchener.actors.sessions.directory import SessionManager
from kitchener.actors.turn.services import TurnServices
from kitchener.errors import StaleHead
from kitchener.ids import TurnId
from kitchener.records import events
from kitchener.records.entries import TurnStartedPayload
from kitchener.records.ref import Ref
from kitchener.records.turn import TurnCall


def start_fields(
    call: TurnCall, services: TurnServices, message: str, turn_ts: str, positions: Mapping[str, int]
) -> TurnStartedPayload:
    """Returns the fields of `TURN_STARTED`, without those about files and about a calling tool.

    Args:
        call: the options of the call
        services: the components that all turns of the agent class share
        message: the user's message
        turn_ts: ISO time of the turn
        positions: the newest entries that the turn may read, by ledger
    """
    constants = services.constants
    fields: TurnStartedPayload = {
        "turn_ts": turn_ts,
        "user_message": message,
        "memory": call.memory,
        "read_positions": positions,
        "ruleset_hash": constants.ruleset_hash,
        "config_hash": constants.config_hash,
        "overlap": services.config.overlap_policy,
    }
    if constants.policy_version > 1:
        fields["policy_version"] = constants.policy_version
    if call.idempotency_key is not None:
        fields["idempotency_key"] = call.idempotency_key
        fields["idempotency_scope"] = "session" if call.session_id is not None else "subject"
    if call.speaker is not None:
        fields["speaker"] = call.speaker
    if call.acceptance:
        fields["acceptance"] = list(call.acceptance)
    if call.output is not None:
        fields["output_schema"] = call.output.hash
    if call.resumes is not None:
        fields["resumes"] = call.resumes
    if call.tool_choice is not None:
        fields["tool_choice"] = call.tool_choice
    return fields


async def write_start(session: SessionManager, turn_id: TurnId, fields: TurnStartedPayload, retries: int) -> Ref:
    """Writes `TURN_STARTED` as the session's next entry. Retries up to `retries` times.

    While a write waits for the subject's key, this process may record rejections of other messages, so the write is retried. If
    this process did not write the new head, there is another writer, and the write fails.
    """
    while True:
        head = session.state.head
        try:
            return await session.write(events.TURN_STARTED, turn_id, fields, turn=turn_id, expected_head=head)
        except StaleHead:
            if session.state.head == head or not retries:
                raise
            retries -= 1
