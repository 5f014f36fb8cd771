"""The turns behind what was learned, and those that were shown it: message and reply, out of HO2m."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kitchener.cli.terminal.output import UNREADABLE, one_line, readable
from kitchener.ledger import LedgerReader
from kitchener.records import events

_WIDTH: Final = 100


@dataclass(slots=True)
class TurnText:
    """What was said in one turn."""

    turn_id: str
    session_id: str | None = None
    """None: the ledger does not know the turn."""
    started_at: str | None = None
    state: str = "unknown"
    """`completed`, `aborted: <reason>`, `open` (it runs, or a crash cut it off), `unknown`."""
    message: Any = None
    """Text; something else where it is sealed and cannot be opened."""
    response: Any = None

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON types."""
        return {
            "turn_id": self.turn_id,
            "session_id": self.session_id,
            "started_at": self.started_at,
            "state": self.state,
            "message": readable(self.message),
            "response": readable(self.response),
        }

    def said(self) -> list[str]:
        """Message and reply, a line each."""
        if self.session_id is None:
            return ["(the supervisor's ledger does not know this turn)"]
        reply = f"< {_text(self.response)}" if self.state == "completed" else f"({self.state})"
        return [f"> {_text(self.message)}", reply]


async def read_turn(ho2m: LedgerReader | None, turn_id: str) -> TurnText:
    """A turn by its id; no scan is needed."""
    turn = TurnText(turn_id)
    if ho2m is None:
        return turn
    async for entry in ho2m.read(key=events.turn_index_key(turn_id)):
        payload = events.read_payload(entry.entry_type, entry.payload)
        turn.session_id, turn.started_at, turn.state = payload["session_id"], entry.timestamp, "open"
        turn.message = payload["user_message"]
    if turn.session_id is None:
        return turn
    ends = (events.TURN_COMPLETED, events.TURN_ABORTED)
    async for entry in ho2m.read(session_id=turn.session_id, entity_id=turn_id, entry_type=ends):
        payload = events.read_payload(entry.entry_type, entry.payload)
        if entry.entry_type == events.TURN_COMPLETED:
            turn.state, turn.response = "completed", payload["response"]
        else:
            turn.state = f"aborted: {payload['reason']}"
    return turn


async def turns_shown(ho2m: LedgerReader | None, subject_id: str, artifact_id: str) -> list[str]:
    """Ids of the turns in which a model was shown a learned line, oldest first."""
    return [] if ho2m is None else list(dict.fromkeys([each async for each in _shown(ho2m, subject_id, artifact_id)]))


async def _shown(ho2m: LedgerReader, subject_id: str, artifact_id: str) -> AsyncIterator[str]:
    async for entry in ho2m.read(key=events.bias_index_key(subject_id, artifact_id)):
        payload: Mapping[str, Any] = events.read_payload(entry.entry_type, entry.payload)
        if isinstance(turn_id := payload.get("turn_id"), str):
            yield turn_id


def _text(value: Any) -> str:
    return one_line(value, _WIDTH) if isinstance(value, str) else UNREADABLE
