"""Tracks the position of a replay in a recorded session.

Each entry that the replay writes is compared at once with the next recorded entry of the same ledger. The first difference
ends the replay. Differences are therefore found in the order in which a turn decides.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NoReturn

import orjson

from kitchener.canonical import canonical_bytes
from kitchener.context import ProjectionLists, read_chain
from kitchener.ledger import LedgerEntry, StoredEntry
from kitchener.records import events
from kitchener.records.attempt_record import attempt_of
from kitchener.records.entries import AttemptStartedPayload, ProjectionPayload, WorkOrderPlannedPayload, payload_as
from kitchener.records.prompt import Attempt
from kitchener.records.ref import Ref
from kitchener.records.work_order import TYPE_TAGS
from kitchener.replaying.comparison import Difference, first_difference, stems_from
from kitchener.replaying.on_record.recorded_sources import RecordedSources
from kitchener.replaying.on_record.turn_tape import TurnTape, item_name, turns_of
from kitchener.replaying.report import ReplayDivergence
from kitchener.replaying.signatures import RecordedSigners

NO_TIME: Final = "1970-01-01T00:00:00.000000+00:00"
"""The time of an entry before any entry has a time."""
_LISTS: Final = ("eligible_refs", "visible_refs", "suppressed_refs", "eligibility_reasons")


class Diverged(BaseException):
    """Ends a replay: an entry differs from the recorded one. Never leaves this package.

    It is not an `Exception`, because a turn turns every `Exception` into a degradation, and this one must pass through.
    """

    def __init__(self, divergence: ReplayDivergence) -> None:
        self.divergence = divergence
        super().__init__(divergence.field)


class Tape:
    """A recorded session and the position of a replay in it.

    Args:
        session_id: the session
        entries: its entries by ledger id, oldest first
        ho2m: the ledger id of the supervisor's ledger
        names: names for entries outside the session, such as learned lines, by ledger id and entry id
        signers: check the signatures of projections; None: no signer is on record
        outputs: the schemas of objects that callers asked for, as JSON texts by their hashes
        configurations: the sources of requests, by the hash of the configuration that names them, where they can be read
    """

    def __init__(
        self,
        session_id: str,
        entries: Mapping[str, Sequence[StoredEntry]],
        *,
        ho2m: str,
        names: Mapping[tuple[str, str], str] = MappingProxyType({}),
        signers: RecordedSigners | None = None,
        outputs: Mapping[str, str] = MappingProxyType({}),
        configurations: Mapping[str, RecordedSources] = MappingProxyType({}),
    ) -> None:
        self.configurations = configurations
        self.on_begin: Callable[[TurnTape], None] | None = None
        """Called when a turn begins."""
        self.session_id, self.entries, self.ho2m, self.outputs = session_id, entries, ho2m, outputs
        self.turn: TurnTape | None = None
        """The current turn; None: before the first."""
        self.positions: Mapping[str, int] = {}
        """The positions of the ledgers that the turn reads now, by ledger id."""
        self.seen: dict[str, int] = {}
        """Number of the last visible entry, by ledger id."""
        self.is_sealed = False
        """Whether content was sealed when the current turn ran."""
        self.policy_differs = False
        self.compares = True
        """Whether payloads are compared; False: only the type and entity of each entry."""
        self.is_other_policy = False
        """Whether the turns run under settings of another policy, without the rules of older versions."""
        self.first: ReplayDivergence | None = None
        """The first divergence found."""
        self._left: dict[str, deque[StoredEntry]] = {}
        self._lists: dict[Ref, ProjectionLists] = {}
        self._by_ref = {entry.ref: entry for each in entries.values() for entry in each}
        self.names, self.signers = names, signers or RecordedSigners()
        own = [entry.seq for entry in entries.get(ho2m, ())]
        self._before = dict(zip(own, [0, *own], strict=False))
        self.turns = self.cut()

    def of_turn(self, *entry_types: str) -> list[StoredEntry]:
        """The current turn's entries of some types; none before the first turn."""
        return [] if self.turn is None else self.turn.of_type(*entry_types)

    def cut(self) -> list[TurnTape]:
        """The turns of the session."""
        return turns_of(self.entries, self.ho2m)

    @property
    def opening(self) -> list[StoredEntry]:
        """The entries of HO2m before the first turn."""
        entries = self.entries.get(self.ho2m, ())
        return [entry for entry in entries if not self.turns or entry.seq < self.turns[0].started.seq]

    def begin(self, turn: TurnTape | None) -> None:
        """Moves to the start of a turn, or with None to the start of the session."""
        self.turn = turn
        first = turn if turn is not None or not self.turns else self.turns[0]
        self.is_sealed = first is not None and first.is_sealed
        if turn is None:
            self._left = {self.ho2m: deque(self.opening)}
            self.seen = dict.fromkeys(self.entries, 0)
            return
        self._left = {ledger_id: deque(entries) for ledger_id, entries in turn.entries.items()}
        self.positions = turn.start["read_positions"]
        self.seen = {ledger_id: self.positions.get(ledger_id, 0) for ledger_id in self.entries}
        self.seen[self.ho2m] = turn.started.seq - 1
        if self.on_begin is not None:
            self.on_begin(turn)

    def follows(self, turn: TurnTape) -> bool:
        """Whether this turn's first entry directly follows the last replayed one in the session."""
        return self.seen.get(self.ho2m) == self.before(turn)

    def before(self, turn: TurnTape) -> int:
        """Number of the session's last entry in HO2m before a turn; 0 if there is none."""
        return self._before[turn.started.seq]

    def next_of(self, ledger_id: str) -> StoredEntry | None:
        """The recorded entry that should be written next; None: no entry is left."""
        left = self._left.get(ledger_id)
        return left[0] if left else None

    def take(self, ledger_id: str, entry: LedgerEntry) -> StoredEntry:
        """Compares an entry with the next recorded one, and returns the recorded one.

        Raises:
            Diverged: they differ
        """
        expected = self.next_of(ledger_id)
        payload = events.in_words(orjson.loads(canonical_bytes(entry.payload)))
        if expected is None or (expected.entry_type, expected.entity_id) != (entry.entry_type, entry.entity_id):
            shown = f"{expected.entry_type} {expected.entity_id}" if expected is not None else None
            about = expected or entry
            self.diverge(
                "entry",
                shown,
                f"{entry.entry_type} {entry.entity_id}",
                (about.entry_type, about.entity_id, expected.entry_id if expected else None),
                payload=expected.payload if expected is not None else payload,
                now=payload,
            )
        recorded = events.read_payload(expected.entry_type, expected.payload)
        found = self._difference(expected, recorded, payload)
        if found is not None:
            about_it = (expected.entry_type, expected.entity_id, expected.entry_id)
            self.diverge(found[0], found[1], found[2], about_it, payload=recorded, now=payload)
        return self.pass_over(ledger_id)

    def pass_over(self, ledger_id: str) -> StoredEntry:
        """Returns the next recorded entry without a comparison."""
        entry = self._left[ledger_id].popleft()
        self.seen[ledger_id] = entry.seq
        if entry.entry_type == events.TURN_STARTED and self.turn is not None:
            self.positions = self.turn.read_positions
        return entry

    def finish(self) -> None:
        """Checks at the end of a turn that every recorded entry was replayed.

        Raises:
            Diverged: a recorded entry is left
        """
        for left in self._left.values():
            for entry in left:
                about = (entry.entry_type, entry.entity_id, entry.entry_id)
                self.diverge("entry", f"{entry.entry_type} {entry.entity_id}", None, about, payload=entry.payload, now={})

    @property
    def policy_version(self) -> int:
        """The version of the rules that the current turn follows; before the first turn, that of the first turn.

        Settings of another policy go by the newest.
        """
        turn = self.turn or next(iter(self.turns), None)
        return events.POLICY_VERSION if turn is None or self.is_other_policy else turn.policy_version

    @property
    def configuration(self) -> RecordedSources | None:
        """The sources of the turn that runs; None: they cannot be read, or no turn runs."""
        return self.configurations.get(self.turn.start.get("config_hash", "")) if self.turn is not None else None

    def diverge(
        self,
        path: str,
        recorded: object,
        recomputed: object,
        about: tuple[str, str, str | None],
        *,
        payload: Mapping[str, object],
        now: Mapping[str, object],
    ) -> NoReturn:
        """Records the first divergence and ends the replay.

        Args:
            path: the field
            recorded: its recorded value
            recomputed: its value in the replay
            about: type, entity and id of the recorded entry
            payload: the recorded payload
            now: the payload that was to be written
        """
        entry_type, entity_id, entry_id = about
        if self.first is None:  # later ones come from the abort of the turn
            self.first = ReplayDivergence(
                turn_id=self.turn.turn_id if self.turn is not None else None,
                field=path,
                recorded=_named(self.name_of, recorded),
                recomputed=_named(self.name_of, recomputed),
                stems_from=stems_from(entry_type, path, payload, now, policy_differs=self.policy_differs),
                entry_type=entry_type,
                entity_id=entity_id,
                entry_id=entry_id,
            )
        raise Diverged(self.first)

    def attempts(self, wo_id: str, call: int) -> list[tuple[StoredEntry, Attempt]]:
        """The attempts of a call in this turn, in recorded order, each with the entry that tells of it.

        An older version recorded an attempt both as it began and with its failure.
        """
        told = (
            (each, attempt_of(each.entry_type, each.payload))
            for each in self.of_turn(*events.OF_MODEL_CALLS)
            if each.entity_id == wo_id and payload_as(AttemptStartedPayload, each.payload)["call"] == call
        )
        return [(entry, attempt) for entry, attempt in told if attempt is not None]

    def visible_items(self) -> tuple[str, ...]:
        """Ids of the turns, rules, intents and learned lines that the turn showed the model, in recorded order."""
        shown: dict[str, None] = {}
        for entry in self.of_turn(events.PROJECTION_COMPUTED):
            projection = events.read_as(ProjectionPayload, entry)
            if projection.get("mode") == "enforce":
                shown |= dict.fromkeys(map(self.name_of, self.lists_of(projection).visible))
        for entry in self.of_turn(events.WO_PLANNED):
            if attention := payload_as(WorkOrderPlannedPayload, entry.payload).get("attention"):
                shown |= dict.fromkeys(self.name_of(Ref.from_mapping(each)) for each in attention.get("fragment_refs") or ())
                shown |= dict.fromkeys(attention.get("biases") or ())
        return tuple(shown)

    def lists_of(self, payload: ProjectionPayload) -> ProjectionLists:
        """The complete lists of a projection, which may be recorded as changes of earlier ones."""
        return read_chain(payload, self._lists, lambda ref: self._by_ref[ref].payload)

    def name_of(self, ref: Ref) -> str:
        """The id of the item that is made of an entry, such as a turn's message or reply."""
        entry = self._by_ref.get(ref)
        if entry is not None:
            return item_name(entry)
        return self.names.get((ref.ledger_id, ref.entry_id), ref.entry_id)

    def _difference(
        self, expected: StoredEntry, recorded: Mapping[str, object], payload: Mapping[str, object]
    ) -> Difference | None:
        if not self.compares:
            return None
        if expected.entry_type == events.PROJECTION_COMPUTED and any(recorded.get(key) != payload.get(key) for key in _LISTS):
            # Equal lists can be written in several forms, and the form is not a decision.
            recorded, payload = self._written_out(recorded), self._written_out(payload)
        if expected.entry_type == events.WO_PLANNED:
            payload = _as_planned(payload_as(WorkOrderPlannedPayload, payload), payload_as(WorkOrderPlannedPayload, recorded))
        found = first_difference(expected.entry_type, recorded, payload, policy_differs=self.policy_differs)
        if found is None and expected.entry_type == events.PROJECTION_COMPUTED and self.turn is not None:
            return self.signers.difference(expected.payload, self.turn.started.seq)
        return found

    def _written_out(self, payload: Mapping[str, object]) -> dict[str, object]:
        lists = self.lists_of(payload_as(ProjectionPayload, payload))
        return {
            **{key: value for key, value in payload.items() if key not in (*_LISTS, "proof_refs")},  # these depend on the form
            "eligible": [self.name_of(ref) for ref in lists.eligible],
            "visible": [self.name_of(ref) for ref in lists.visible],
            "suppressed": [f"{self.name_of(ref)} {reason}" for ref, reason in lists.suppressed],
            "reasons": {key: list(reasons) for key, reasons in lists.reasons.items()},
        }


def _named(name_of: Callable[[Ref], str], value: object) -> object:
    """A value for a reader, with each reference replaced by the id of its item."""
    if isinstance(value, list):
        return [_named(name_of, each) for each in value]
    if isinstance(value, dict):
        if value.keys() == {"ledger_id", "entry_id", "entry_hash"}:
            return name_of(Ref(str(value["ledger_id"]), str(value["entry_id"]), str(value["entry_hash"])))
        return {key: _named(name_of, each) for key, each in value.items()}
    return value


def _as_planned(now: WorkOrderPlannedPayload, recorded: WorkOrderPlannedPayload) -> Mapping[str, object]:
    """A plan as the recording version wrote it: an earlier one left out the tag of the type, and ran tools one by one."""
    left_out = {"parallel_tools"}
    if now["constraints"].get("domain_tags") == [TYPE_TAGS[now["wo_type"]]]:
        left_out.add("domain_tags")
    left_out -= recorded["constraints"].keys()
    return {**now, "constraints": {key: value for key, value in now["constraints"].items() if key not in left_out}}
