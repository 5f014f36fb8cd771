"""Describes how a turn ended, from its last entry and from the model call that it waited for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from kitchener.inspection.shown_text import UNREADABLE
from kitchener.ledger import StoredEntry
from kitchener.records import events
from kitchener.records.entries import (
    AbortReason,
    SealedText,
    TurnAbortedPayload,
    TurnCompletedPayload,
    TurnErrorMapping,
    opened,
    payload_as,
)
from kitchener.records.spoken import told_reply
from kitchener.sealed_values import is_sealed

_OPEN: Final = "not ended: it runs, or a crash cut it off"
_WORDLESS: Final = "(no text)"
CUT: Final = (
    "cut at the model's limit of output tokens, such as max_tokens of its agent class, or its context window,"
    " or by a content filter"
)
"""Why a reply is only a beginning."""

TurnState = Literal["open", "completed", "aborted", "imported", "unknown"]
"""How far a turn has come. `open`: it runs, or a crash cut it off and it is not yet closed; `imported`: it is a message of an
imported conversation, for which no turn ran; `unknown`: the ledger does not know it."""


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """How a turn ended."""

    entry: StoredEntry | None = None
    """Its `TURN_COMPLETED` or `TURN_ABORTED`; None: it has not ended."""
    waited_for: str = ""
    """The attempts at the model that it waited for; "": it was answered, or asked no model."""

    @property
    def completed(self) -> TurnCompletedPayload | None:
        """What it came to; None: it was aborted, or has not ended."""
        payload = self._payload(events.TURN_COMPLETED)
        return payload_as(TurnCompletedPayload, payload) if payload is not None else None

    @property
    def aborted(self) -> TurnAbortedPayload | None:
        """Why it was aborted; None: it was not."""
        payload = self._payload(events.TURN_ABORTED)
        return payload_as(TurnAbortedPayload, payload) if payload is not None else None

    def _payload(self, entry_type: str) -> Mapping[str, object] | None:
        return current(self.entry) if self.entry is not None and self.entry.entry_type == entry_type else None

    @property
    def error(self) -> TurnErrorMapping | None:
        """Why it could not do what it was asked; None: it could, was aborted, or the error cannot be read."""
        error = self.completed.get("error") if self.completed is not None else None
        return opened(error) if error is not None else None

    @property
    def words(self) -> str:
        """How it ended, for people."""
        completed, aborted = self.completed, self.aborted
        if completed is None:
            state = state_words("aborted", aborted.get("reason")) if aborted is not None else _OPEN
            return f"{state}; {self.waited_for}" if self.waited_for else state
        if completed.get("error") is None:
            return f"completed; the reply was {CUT}" if completed.get("truncated") else "completed"
        told = self.error
        return (
            f"completed with an apology: {told['kind']}: {told['message']}" if told is not None else f"completed: {UNREADABLE}"
        )


NOT_ENDED: Final = TurnEnd()
"""The end of a turn that runs, or that a crash cut off."""


def end_of(turn_id: str, entries: Sequence[StoredEntry], waited_for: str) -> TurnEnd:
    """How a turn ended.

    Args:
        turn_id: the turn
        entries: of its session in the supervisor's ledger
        waited_for: the attempts at the newest model call of the turn, if no model answered it
    """
    ends = (events.TURN_COMPLETED, events.TURN_ABORTED)
    mine = [each for each in entries if each.entity_id == turn_id and each.entry_type in ends]
    is_completed = bool(mine) and mine[-1].entry_type == events.TURN_COMPLETED
    return TurnEnd(mine[-1] if mine else None, "" if is_completed else waited_for)


def state_words(state: TurnState, abort_reason: AbortReason | None) -> str:
    """The state of a turn as text: of an aborted one with the reason, as in `aborted: timeout`."""
    return f"{state}: {abort_reason}" if state == "aborted" else state


def shown_reply(completed: TurnCompletedPayload) -> SealedText:
    """A reply for a reader: its text and the functions that it left to the client; sealed where it cannot be read."""
    response = completed["response"]
    return response if is_sealed(response) else told_reply(completed) or _WORDLESS


def current(entry: StoredEntry) -> Mapping[str, object]:
    """A payload in its current shape; as it stands where another program wrote it."""
    is_ours = isinstance(events.read_common(entry).get("v", 1), int)
    return events.read_payload(entry.entry_type, entry.payload) if is_ours else entry.payload
