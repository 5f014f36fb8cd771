"""Splits a recorded session into turns, and says what each of them recorded."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kitchener.context import result_id
from kitchener.context.fold.items import OF_MESSAGE
from kitchener.gateway.providers.recorded import Recording
from kitchener.ledger import StoredEntry
from kitchener.ledger.format.imported import ImportedEntry
from kitchener.memory.recorded_signals import turn_of_signals
from kitchener.records import events
from kitchener.records.attempt_record import attempt_of
from kitchener.records.entries import (
    AttemptStartedPayload,
    ModelCallPayload,
    NestedTurn,
    ToolCallPayload,
    TurnAbortedPayload,
    TurnCompletedPayload,
    TurnStartedPayload,
    WorkOrderPlannedPayload,
    payload_as,
)
from kitchener.records.parts import StoredPart

AS_ERASED: Final = "erased"
"""Why a turn is skipped whose text has no key: its subject was erased, or the key is missing here."""


@dataclass(slots=True)
class TurnTape:
    """The entries of one turn."""

    turn_id: str
    started: StoredEntry
    entries: dict[str, list[StoredEntry]] = field(default_factory=dict)
    """By ledger id, oldest first."""
    end: StoredEntry | None = None
    """`TURN_COMPLETED` or `TURN_ABORTED`."""

    @property
    def start(self) -> TurnStartedPayload:
        """The payload of `TURN_STARTED`."""
        return payload_as(TurnStartedPayload, self.started.payload)

    @property
    def parts(self) -> list[StoredPart]:
        """The images and files of its message."""
        return [StoredPart.from_payload(each.payload) for each in self.of_type(events.PART_ATTACHED)]

    @property
    def read_positions(self) -> Mapping[str, int]:
        """Number of the last entry that the turn could read, by ledger id: as recorded at its end, otherwise at its start."""
        at_start = self.start["read_positions"]
        if self.end is None:
            return at_start
        return payload_as(TurnCompletedPayload, self.end.payload).get("read_positions", at_start)

    @property
    def policy_version(self) -> int:
        """The version of the rules that it followed, or the newest if this version of Kitchener does not know it."""
        version = self.start.get("policy_version", 1)
        return version if version in range(1, events.POLICY_VERSION) else events.POLICY_VERSION

    @property
    def is_erased(self) -> bool:
        """Whether the message cannot be read because the subject's key is gone."""
        return not isinstance(self.start.get("user_message"), str)

    @property
    def is_sealed(self) -> bool:
        """Whether its content was sealed when it ran; then its digests are keyed."""
        plans = (payload_as(WorkOrderPlannedPayload, each.payload) for each in self.of_type(events.WO_PLANNED))
        calls = (payload_as(ModelCallPayload, each.payload) for each in self.of_type(events.LLM_CALL))
        hashes = (*(each.get("input_hash") for each in plans), *(each.get("request_hash") for each in calls))
        return next((each.startswith("hmac-") for each in hashes if each), False)

    @property
    def is_replayable(self) -> bool:
        """Whether it completed and its text can be read."""
        return self.end is not None and self.end.entry_type == events.TURN_COMPLETED and not self.is_erased

    @property
    def skipped_as(self) -> str:
        """Why it is skipped: `erased`, `open` or `aborted: <reason>`."""
        if self.is_erased:
            return AS_ERASED
        return "open" if self.end is None else f"aborted: {payload_as(TurnAbortedPayload, self.end.payload).get('reason')}"

    @property
    def nested_turns(self) -> list[NestedTurn]:
        """The turns that its tools ran in other sessions."""
        calls = (payload_as(ToolCallPayload, each.payload) for each in self.of_type(events.TOOL_CALL))
        return [nested for call in calls for nested in call.get("nested_turns", ())]

    def direct_calls(self, wo_id: str) -> set[int]:
        """The numbers of the calls that it made in a broken work order without HO1."""
        own = (entry for entry in self.of_type(*events.OF_MODEL_CALLS) if entry.entity_id == wo_id)
        told = (payload_as(AttemptStartedPayload, each.payload) for each in own)
        return {each["call"] for each in told if each.get("governance_violation")}

    def is_tagged(self, wo_id: str) -> bool:
        """Whether a work order carries domain tags. An older version planned it without the tag of its type."""
        planned = [entry.payload for entry in self.of_type(events.WO_PLANNED) if entry.entity_id == wo_id]
        return any("domain_tags" in payload_as(WorkOrderPlannedPayload, each)["constraints"] for each in planned)

    def of_type(self, *entry_types: str) -> list[StoredEntry]:
        """Its entries of some types, grouped by ledger."""
        return [entry for entries in self.entries.values() for entry in entries if entry.entry_type in entry_types]


def item_name(entry: StoredEntry) -> str:
    """The id of the item that is made of an entry: the reply of a turn has the turn's id, and its message one of its own."""
    if entry.entry_type == events.TURN_STARTED:
        return entry.entity_id + OF_MESSAGE
    if entry.entry_type == events.TOOL_CALL:
        return result_id(entry.entity_id, payload_as(ToolCallPayload, entry.payload)["call"])
    return entry.entity_id


def providers_of(turns: Iterable[TurnTape]) -> set[str]:
    """The providers of all attempts in some turns."""
    told = (attempt_of(each.entry_type, each.payload) for turn in turns for each in turn.of_type(*events.OF_MODEL_CALLS))
    return {attempt.provider_id for attempt in told if attempt is not None}


def recordings_of(turns: Iterable[TurnTape]) -> dict[tuple[str, int], Recording]:
    """The model calls of some turns, by work order and call number."""
    found = {}
    for turn in turns:
        for entry in turn.of_type(events.LLM_CALL) if not turn.is_erased else ():
            payload = events.read_payload(entry.entry_type, entry.payload)
            found[entry.entity_id, payload_as(ModelCallPayload, payload)["call"]] = Recording.from_payload(payload)
    return found


def turns_of(entries: Mapping[str, Sequence[StoredEntry]], ho2m: str) -> list[TurnTape]:
    """The turns of a session, without those that ran in another root and read its ledgers.

    Args:
        entries: the session's entries by ledger id, oldest first
        ho2m: the ledger id of the supervisor's ledger
    """
    found: dict[str, TurnTape] = {}
    for entry in entries.get(ho2m, ()):
        if entry.entry_type == events.TURN_STARTED and not isinstance(entry, ImportedEntry):
            found[entry.entity_id] = TurnTape(entry.entity_id, entry)
        elif entry.entry_type in (events.TURN_COMPLETED, events.TURN_ABORTED) and entry.entity_id in found:
            found[entry.entity_id].end = entry
    for ledger_id, of_ledger in entries.items():
        for entry in of_ledger:
            is_signal = entry.entry_type == events.HO3_SIGNAL
            turn_id = turn_of_signals(entry) if is_signal else events.read_common(entry).get("turn_id")
            if turn_id in found:
                found[turn_id].entries.setdefault(ledger_id, []).append(entry)
    return list(found.values())
