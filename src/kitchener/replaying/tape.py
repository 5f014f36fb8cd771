"""Splits a recorded session into turns, and tracks the position of a replay in it.

Each entry that the replay writes is compared at once with the next recorded entry of the same ledger. The first difference
ends the replay. Differences are therefore found in the order in which a turn decides.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NoReturn

import orjson

from kitchener.canonical import canonical_bytes
from kitchener.context import ProjectionLists, base_ref, read_lists
from kitchener.gateway.providers.recorded import Recording
from kitchener.ledger import LedgerEntry, StoredEntry
from kitchener.ledger.format.lines import NO_END
from kitchener.memory.index import SIGNALS
from kitchener.records import events
from kitchener.records.prompt import Attempt
from kitchener.records.ref import Ref
from kitchener.replaying.comparison import first_difference
from kitchener.replaying.origins import stems_from
from kitchener.replaying.report import ReplayDivergence

_LISTS: Final = ("eligible_refs", "visible_refs", "suppressed_refs", "eligibility_reasons")


class Diverged(BaseException):
    """The replay is over: what was written is not what was recorded. Never leaves this package.

    Not an `Exception`, because a turn answers each of those with a degradation, and this one must pass through.
    """

    def __init__(self, divergence: ReplayDivergence) -> None:
        self.divergence = divergence
        super().__init__(divergence.field)


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
    def is_erased(self) -> bool:
        """Whether what was said in it cannot be read any more: its subject's key is gone."""
        return not isinstance(self.started.payload.get("user_message"), str)

    @property
    def is_replayable(self) -> bool:
        """Whether it ended with a reply and can be read."""
        return self.end is not None and self.end.entry_type == events.TURN_COMPLETED and not self.is_erased

    @property
    def skipped_as(self) -> str:
        """Why it is not replayed."""
        if self.is_erased:
            return "erased"
        return "open" if self.end is None else f"aborted: {self.end.payload.get('reason')}"

    def of_type(self, *entry_types: str) -> list[StoredEntry]:
        """All its entries of some types, ledger by ledger."""
        return [entry for entries in self.entries.values() for entry in entries if entry.entry_type in entry_types]


class Tape:
    """A recorded session, and the entries that are still to be replayed.

    Args:
        session_id: the session
        entries: its entries by ledger id, oldest first
        ho2m: the ledger id of the supervisor's ledger
        names: what references to entries of no session stand for, such as learned lines
    """

    def __init__(
        self,
        session_id: str,
        entries: Mapping[str, Sequence[StoredEntry]],
        *,
        ho2m: str,
        names: Mapping[tuple[str, str], str] = MappingProxyType({}),
    ) -> None:
        self.session_id, self.entries, self.ho2m = session_id, entries, ho2m
        self.turns: list[TurnTape] = []
        self.turn: TurnTape | None = None
        """The turn that is being replayed."""
        self.positions: Mapping[str, int] = {}
        """What reading the ledgers' positions gives now."""
        self.seen: dict[str, int] = {}
        """How far each ledger is visible."""
        self.policy_differs = False
        self.first: ReplayDivergence | None = None
        """The first divergence found."""
        self._left: dict[str, deque[StoredEntry]] = {}
        self._lists: dict[str, ProjectionLists] = {}
        self._by_ref = {(entry.ledger_id, entry.entry_id): entry for each in entries.values() for entry in each}
        self.names = names
        own = [entry.seq for entry in entries.get(ho2m, ())]
        self._before = dict(zip(own, [0, *own], strict=False))
        self._cut()

    @property
    def opening(self) -> list[StoredEntry]:
        """The entries of HO2m before the first turn."""
        first = self.turns[0].started.seq if self.turns else NO_END
        return [entry for entry in self.entries.get(self.ho2m, ()) if entry.seq < first]

    def begin(self, turn: TurnTape | None) -> None:
        """Puts the tape to a turn, or with None to the beginning of the session."""
        self.turn = turn
        if turn is None:
            self._left = {self.ho2m: deque(self.opening)}
            self.seen = dict.fromkeys(self.entries, 0)
            return
        self._left = {ledger_id: deque(entries) for ledger_id, entries in turn.entries.items()}
        self.positions = turn.started.payload["read_positions"]
        self.seen = {ledger_id: self.positions.get(ledger_id, 0) for ledger_id in self.entries}
        self.seen[self.ho2m] = turn.started.seq - 1

    def follows(self, turn: TurnTape) -> bool:
        """Whether nothing was written to the session between what was replayed last and this turn."""
        return self.seen.get(self.ho2m) == self.before(turn)

    def before(self, turn: TurnTape) -> int:
        """Number of the session's last entry in HO2m before a turn; 0 where there is none."""
        return self._before[turn.started.seq]

    def next_of(self, ledger_id: str) -> StoredEntry | None:
        """The recorded entry that is expected next."""
        left = self._left.get(ledger_id)
        return left[0] if left else None

    def take(self, ledger_id: str, entry: LedgerEntry) -> StoredEntry:
        """The recorded entry that this one is equal to.

        Raises:
            Diverged: it is not
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
        """The next recorded entry, taken as given."""
        entry = self._left[ledger_id].popleft()
        self.seen[ledger_id] = entry.seq
        if entry.entry_type == events.TURN_STARTED and self.turn is not None and self.turn.end is not None:
            self.positions = self.turn.end.payload.get("read_positions", self.positions)
        return entry

    def finish(self) -> None:
        """Nothing more will be written in this turn.

        Raises:
            Diverged: more was recorded
        """
        for left in self._left.values():
            for entry in left:
                about = (entry.entry_type, entry.entity_id, entry.entry_id)
                self.diverge("entry", f"{entry.entry_type} {entry.entity_id}", None, about, payload=entry.payload, now={})

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
        """Ends the replay.

        Args:
            path: the field
            recorded: its recorded value
            recomputed: what it is now
            about: type, entity and id of the recorded entry
            payload: the recorded payload
            now: the payload that was to be written
        """
        entry_type, entity_id, entry_id = about
        if self.first is None:  # what a turn still writes when it is stopped says nothing
            self.first = ReplayDivergence(
                turn_id=self.turn.turn_id if self.turn is not None else None,
                field=path,
                recorded=self._named(recorded),
                recomputed=self._named(recomputed),
                stems_from=stems_from(entry_type, path, payload, now, policy_differs=self.policy_differs),
                entry_type=entry_type,
                entity_id=entity_id,
                entry_id=entry_id,
            )
        raise Diverged(self.first)

    def recordings(self) -> dict[tuple[str, int], Recording]:
        """The session's model calls by work order and call number."""
        found = {}
        for turn in self.turns:
            for entry in turn.of_type(events.LLM_CALL) if not turn.is_erased else ():
                payload = events.read_payload(entry.entry_type, entry.payload)
                found[entry.entity_id, int(payload["call"])] = Recording.from_payload(payload)
        return found

    def attempts(self, wo_id: str, call: int) -> list[Attempt]:
        """The attempts of a call of this turn, in the order in which they were told."""
        found = []
        for entry in self.turn.of_type(events.ATTEMPT_STARTED, events.ATTEMPT_FAILED) if self.turn is not None else ():
            each = entry.payload
            if entry.entity_id == wo_id and each["call"] == call:
                has_failed = entry.entry_type == events.ATTEMPT_FAILED
                found.append(
                    Attempt(
                        "failed" if has_failed else "started",
                        call,
                        each["attempt"],
                        each["provider_id"],
                        each["model_id"],
                        each["route_reason"],
                        each.get("reason"),
                        each.get("detail"),
                        each.get("output_begun", False),
                    )
                )
        return found

    def providers(self) -> set[str]:
        """The providers that any attempt of the session went to."""
        found = (turn.of_type(events.ATTEMPT_STARTED) for turn in self.turns)
        return {str(entry.payload["provider_id"]) for entries in found for entry in entries}

    def visible_items(self) -> tuple[str, ...]:
        """What the turn showed the model: ids of turns, rules, intents and learned lines, in the order on record."""
        shown: dict[str, None] = {}
        turn = self.turn
        for entry in turn.of_type(events.PROJECTION_COMPUTED) if turn is not None else ():
            if entry.payload.get("mode") == "enforce":
                shown |= dict.fromkeys(map(self.name_of, self.lists_of(entry.payload).visible))
        for entry in turn.of_type(events.WO_PLANNED) if turn is not None else ():
            attention = entry.payload.get("attention") or {}
            refs = attention.get("fragment_refs") or ()
            shown |= dict.fromkeys(self.name_of(Ref.from_mapping(each)) for each in refs)
            shown |= dict.fromkeys(attention.get("biases") or ())
        return tuple(shown)

    def lists_of(self, payload: Mapping[str, object]) -> ProjectionLists:
        """The lists of a projection, written out along the recorded ones to which it refers."""
        base = base_ref(payload)
        if base is None:
            return read_lists(payload)
        known = self._lists.get(base.entry_id)
        if known is None:
            chain = [base]
            while chain:
                entry = self._by_ref[chain[-1].ledger_id, chain[-1].entry_id]
                below = base_ref(entry.payload)
                if below is not None and below.entry_id not in self._lists:
                    chain.append(below)
                    continue
                before = self._lists[below.entry_id] if below is not None else None
                known = self._lists[chain.pop().entry_id] = read_lists(entry.payload, before)
        return read_lists(payload, known)

    def name_of(self, ref: Ref) -> str:
        """The entity that a reference stands for."""
        entry = self._by_ref.get((ref.ledger_id, ref.entry_id))
        if entry is not None:
            return entry.entity_id
        return self.names.get((ref.ledger_id, ref.entry_id), ref.entry_id)

    def _difference(self, expected: StoredEntry, recorded: Mapping[str, object], payload: dict[str, Any]) -> Any:
        if expected.entry_type == events.PROJECTION_COMPUTED and any(recorded.get(key) != payload.get(key) for key in _LISTS):
            # The same lists have several forms: which one was written is no decision.
            recorded, payload = self._written_out(recorded), self._written_out(payload)
        return first_difference(expected.entry_type, recorded, payload, policy_differs=self.policy_differs)

    def _written_out(self, payload: Mapping[str, object]) -> dict[str, Any]:
        lists = self.lists_of(payload)
        return {
            **{key: value for key, value in payload.items() if key not in (*_LISTS, "proof_refs")},  # those go with the form
            "eligible": [self.name_of(ref) for ref in lists.eligible],
            "visible": [self.name_of(ref) for ref in lists.visible],
            "suppressed": [f"{self.name_of(ref)} {reason}" for ref, reason in lists.suppressed],
            "reasons": {key: list(reasons) for key, reasons in lists.reasons.items()},
        }

    def _named(self, value: object) -> object:
        """A value for a reader: references give way to what they stand for."""
        if isinstance(value, list):
            return [self._named(each) for each in value]
        if isinstance(value, dict):
            if value.keys() == {"ledger_id", "entry_id", "entry_hash"}:
                return self.name_of(Ref(value["ledger_id"], value["entry_id"], value["entry_hash"]))
            return {key: self._named(each) for key, each in value.items()}
        return value

    def _cut(self) -> None:
        """Cuts the session into turns."""
        found: dict[str, TurnTape] = {}
        for entry in self.entries.get(self.ho2m, ()):
            if entry.entry_type == events.TURN_STARTED:
                found[entry.entity_id] = TurnTape(entry.entity_id, entry)
            elif entry.entry_type in (events.TURN_COMPLETED, events.TURN_ABORTED) and entry.entity_id in found:
                found[entry.entity_id].end = entry
        for ledger_id, entries in self.entries.items():
            for entry in entries:
                payload = entry.payload
                holder = payload.get("metadata") if ledger_id == SIGNALS else payload
                turn_id = holder.get("turn_id") if isinstance(holder, dict) else None
                if turn_id in found:
                    found[turn_id].entries.setdefault(ledger_id, []).append(entry)
        self.turns = list(found.values())
