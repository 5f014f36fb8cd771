"""Finds the consolidation that changed what a turn is shown, by running the turn with the memory at earlier positions.

Only the memory varies. The turn keeps its message, labels, past and time, so any change comes from what was learned or
withdrawn, not from the conversation or from the time. Explained in `docs/replay.md`.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass
from typing import Final

from kitchener.config.settings_parser import toml_key
from kitchener.errors import CallerError, NotOnRecord
from kitchener.ids import memory_namespace, session_of_valid_turn
from kitchener.ledger import StoredEntry
from kitchener.ledger.format.lines import NO_END
from kitchener.memory.overlays import Overlay
from kitchener.memory.reader import record_facts
from kitchener.memory.signals import Cut, RecordedEvent
from kitchener.memory.subject_cache import OVERLAYS, SIGNALS, fold_subject, signal_keys
from kitchener.memory.subject_memory import SubjectMemory
from kitchener.plain_names import quoted
from kitchener.records import events
from kitchener.records.entries import OverlayDeactivatedPayload
from kitchener.replaying import Replays, Rerun, ShownContext
from kitchener.replaying.on_record.turn_tape import TurnTape
from kitchener.replaying.tape import Tape

_LEARNED: Final = ("ART-", "OVL-")
"""Prefixes of the ids of learned lines."""
_IDS: Final = (*_LEARNED, "T-", "INT-", "INV-", "WO-")
"""Prefixes of the ids of everything that a turn may be shown."""


@dataclass(frozen=True, slots=True)
class BisectQuestion:
    """The change to look for."""

    session_id: str
    """The session of the turn that shows the change."""
    bad: str | None = None
    """The turn to run again; None: the last turn of the session that can be run again."""
    good: str | None = None
    """An earlier turn of the subject, in any session, without the change; None: an empty memory."""
    item: str | None = None
    """The item that appeared or disappeared: its id, or words of a learned line (its id is its artifact's). None: any item."""
    every: bool = False
    """Find every change, in order. This runs the turn once for each entry."""


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """An entry of the overlays ledger that changed what the turn is shown."""

    entry: StoredEntry
    overlay: Overlay | None
    """The artifact that the entry is about; None: the entry is a quarantine."""
    sources: tuple[RecordedEvent, ...]
    """The events that the artifact was learned from, oldest first."""
    before: ShownContext
    after: ShownContext

    def lines(self) -> Iterator[str]:
        """The learned lines and other items that disappeared, each after a `-`, then the new ones, each after a `+`."""
        for sign, mine, other in (("-", self.before, self.after), ("+", self.after, self.before)):
            yield from (f"{sign} {line}" for line in mine.lines if line not in other.lines)
            yield from (f"{sign} {item}" for item in mine.items if item not in other.items and not item.startswith(_LEARNED))

    def as_json(self) -> dict[str, object]:
        overlay = self.overlay
        return {
            "entry": self._entry_json(),
            "artifact_id": None if overlay is None else overlay.key,
            "signal_id": None if overlay is None else overlay.signal_id,
            "line": None if overlay is None else overlay.line,
            "gate_snapshot": None if overlay is None else overlay.gate_snapshot,
            "source_events": [each._asdict() for each in self.sources],
            "diff": list(self.lines()),
            "before": _as_json(self.before),
            "after": _as_json(self.after),
        }

    def _entry_json(self) -> dict[str, object]:
        head = {"ledger_id": self.entry.ledger_id, "seq": self.entry.seq, "entry_id": self.entry.entry_id}
        return {**head, **record_facts(self.entry, "reason", "superseded_by", "target")}


@dataclass(frozen=True, slots=True)
class BisectReport:
    """The result of a search for changes."""

    question: BisectQuestion
    turn_id: str
    subject_id: str
    between: int
    """Number of entries of the subject's memory between the two turns."""
    probes: int
    """How often the turn was run."""
    changes: tuple[MemoryChange, ...]
    """One, or with `every` all; empty: nothing changed."""
    at_good: ShownContext
    at_bad: ShownContext
    is_shown: bool | None
    """Whether the bad turn is shown the item; None: the question named no item."""
    is_exact: bool
    """Whether the repeated turn is shown exactly what is on record; False: settings have changed since."""

    def as_json(self) -> dict[str, object]:
        return {
            **asdict(self.question),
            "turn_id": self.turn_id,
            "subject_id": self.subject_id,
            "between": self.between,
            "probes": self.probes,
            "is_shown": self.is_shown,
            "is_exact": self.is_exact,
            "at_good": _as_json(self.at_good),
            "at_bad": _as_json(self.at_bad),
            "changes": [each.as_json() for each in self.changes],
        }


async def bisect(
    replays: Replays, question: BisectQuestion, *, probed: Callable[[int], object] = lambda between: None
) -> BisectReport:
    """Finds an entry of the overlays ledger after which a turn is shown something else.

    Args:
        replays: the replays of the turn's agent class
        question: what to look for
        probed: called after each run of the turn, with the number of positions

    Raises:
        UnknownSession: the session is not on record
        NotOnRecord: a turn or the item is not on record, the turn cannot be run again, or the memory is off
        CallerError: the good turn is not earlier, or belongs to another subject
    """
    run = Rerun(replays, await replays.tape_of(question.session_id))
    bad = _turn_of(run.tape, question.bad)
    subject_id = bad.start["subject_id"]
    subject = await _memory_of(replays, bad, subject_id)
    low, high = await _learned_to(replays, run.tape, question.good, subject_id), _position(bad)
    if low > high:
        raise CallerError(f"--good {question.good!r}: expected a turn that began before --bad {bad.turn_id!r} did")
    (key,) = signal_keys("", {"namespace": subject.namespace})
    reader = replays.recorded.readers[OVERLAYS]
    entries = [entry async for entry in reader.read(key=key, after_seq=low, up_to_seq=high)]
    looked_for = _looked_for(question.item, run.tape, subject, Cut(NO_END, NO_END, high), subject_id)
    search = _Bisection(run, bad, [low, *(entry.seq for entry in entries)], looked_for, probed)
    found = await (search.all_changes() if question.every else search.one_change())
    at_good, at_bad = await search.shown(0), await search.shown(len(entries))
    changes = [_change(entries[n - 1], subject, await search.shown(n - 1), await search.shown(n)) for n in found]
    return BisectReport(
        question,
        bad.turn_id,
        subject_id,
        len(entries),
        search.probes,
        tuple(changes),
        at_good,
        at_bad,
        is_shown=None if looked_for is None else _has(at_bad, looked_for),
        is_exact=set(at_bad.items) == set(search.recorded_items),
    )


class _Bisection:
    """Runs a turn at positions of the overlays ledger, at most once at each."""

    def __init__(
        self, run: Rerun, turn: TurnTape, places: list[int], looked_for: str | None, probed: Callable[[int], object]
    ) -> None:
        self._run, self._turn, self._places, self._looked_for, self._probed = run, turn, places, looked_for, probed
        self._found: dict[int, ShownContext] = {}
        self.recorded_items: tuple[str, ...] = ()
        """What the turn was shown on record."""

    @property
    def probes(self) -> int:
        """Runs so far."""
        return len(self._found)

    async def shown(self, n: int) -> ShownContext:
        """What the turn is shown at the n-th position."""
        if n not in self._found:
            self._found[n] = await self._run.view(self._turn, self._places[n])
            self.recorded_items = self._run.tape.visible_items()
            self._probed(len(self._places))
        return self._found[n]

    async def one_change(self) -> list[int]:
        """A position where the answer changes from the first one to the last one; none if these are equal."""
        last = len(self._places) - 1
        if last < 1 or not await self._differ(0, last):
            return []
        asking = bisection(last)
        try:
            n = next(asking)
            while True:
                n = asking.send(await self._differ(0, n))
        except StopIteration as end:
            return [int(end.value)]

    async def all_changes(self) -> list[int]:
        """Each position whose answer differs from the one before."""
        return [n for n in range(1, len(self._places)) if await self._differ(n - 1, n)]

    async def _differ(self, one: int, other: int) -> bool:
        return self._answer(await self.shown(one)) != self._answer(await self.shown(other))

    def _answer(self, shown: ShownContext) -> object:
        return (shown.items, shown.text) if self._looked_for is None else _has(shown, self._looked_for)


def bisection(last: int) -> Generator[int, bool, int]:
    """Finds a position where an answer changes from old to new. Yields positions; the caller sends whether each answer is new.

    The answer at position 0 is old, and the last one is new. If the answer changes several times, one of the changes is found.
    Yields log2(last) positions, rounded up.

    Args:
        last: the last position, at least 1
    """
    old, new = 0, last
    while new - old > 1:
        middle = (old + new) // 2
        if (yield middle):
            new = middle
        else:
            old = middle
    return new


def _has(shown: ShownContext, wanted: str) -> bool:
    """Whether an item is shown, by its id or by words of a learned line."""
    if wanted.startswith(_IDS):
        return wanted in shown.items
    return any(wanted in line.casefold() for line in shown.lines)


def _turn_of(tape: Tape, turn_id: str | None) -> TurnTape:
    """The turn to run again."""
    there_are = f"`kitchener session show {tape.session_id}` lists the turns there are"
    if turn_id is None:
        found = next((each for each in reversed(tape.turns) if each.is_replayable), None)
        if found is None:
            raise NotOnRecord(f"session {tape.session_id!r} has no turn that can be run again; {there_are}")
        return found
    found = next((each for each in tape.turns if each.turn_id == turn_id), None)
    if found is None:
        raise NotOnRecord(f"turn {turn_id!r} is not on record; {there_are}")
    if not found.is_replayable:
        raise NotOnRecord(f"turn {turn_id!r} cannot be run again: {found.skipped_as}; {there_are}")
    return found


async def _memory_of(replays: Replays, turn: TurnTape, subject_id: str) -> SubjectMemory:
    """The whole recorded memory of the turn's subject."""
    recorded, agent_class = replays.recorded, replays.agent_class
    if recorded.memory is None:
        table = toml_key(("agents", agent_class))
        raise NotOnRecord(
            f"long-term memory of {agent_class} is off, so no turn is shown a learned line;"
            f" `ho3_enabled = true` below [{table}] of kitchener.toml turns it on"
        )
    if not turn.start.get("memory", True):
        raise NotOnRecord(f"turn {turn.turn_id!r} ran without memory, so nothing that was learned could change it")
    signals, overlays = recorded.readers.get(SIGNALS), recorded.readers.get(OVERLAYS)
    if signals is None or overlays is None:
        raise NotOnRecord(
            f"agent class {agent_class!r} has no memory on record; `kitchener memory signals` shows what there is"
        )
    return await fold_subject(memory_namespace(agent_class, subject_id), signals, overlays)


async def _learned_to(replays: Replays, tape: Tape, turn_id: str | None, subject_id: str) -> int:
    """Number of the last overlays entry that a turn could read; 0 if no turn is named."""
    if turn_id is None:
        return 0
    session_id = session_of_valid_turn(turn_id)
    theirs = tape if session_id == tape.session_id else await replays.tape_of(session_id)
    turn = next((each for each in theirs.turns if each.turn_id == turn_id), None)
    if turn is None:
        raise NotOnRecord(f"turn {turn_id!r} is not on record; `kitchener session show {session_id}` lists the turns there are")
    if (whose := turn.start["subject_id"]) != subject_id:
        raise CallerError(f"--good {turn_id!r} is a turn of {whose!r}: expected one of {subject_id!r}, as --bad is")
    return _position(turn)


def _position(turn: TurnTape) -> int:
    return turn.start["read_positions"].get(OVERLAYS, 0)


def _looked_for(item: str | None, tape: Tape, subject: SubjectMemory, cut: Cut, subject_id: str) -> str | None:
    """The item in the form in which it is compared. Raises NotOnRecord if the turn cannot have been shown it."""
    if item is None:
        return None
    if item.startswith(_IDS) and not item.startswith(_LEARNED):
        known = item.startswith("INV-") or any(item == entry.entity_id for entry in tape.entries[tape.ho2m])
    else:
        words = item.casefold()
        lines = [each for each in subject.overlays(cut) if item in (each.key, each.overlay_id) or words in each.line.casefold()]
        known = bool(words.strip() and lines)
    if not known:
        raise NotOnRecord(
            f"--item {quoted(item)}: the turn could not have been shown it;"
            f" `kitchener memory biases --all --subject {subject_id}` shows what was learned:"
            " expected an ART-…, a turn or intent of the session, or words of a learned line"
        )
    return item if item.startswith(_IDS) else item.casefold()


def _change(entry: StoredEntry, subject: SubjectMemory, before: ShownContext, after: ShownContext) -> MemoryChange:
    about = events.read_as(OverlayDeactivatedPayload, entry)
    key = about.get("artifact_id") or about.get("overlay_id")
    cut = Cut(NO_END, NO_END, entry.seq)
    overlay = subject.overlay(key, cut) if key is not None else None
    sources = () if overlay is None else subject.recorded(overlay.source_event_ids, cut)
    return MemoryChange(entry, overlay, tuple(sources), before, after)


def _as_json(shown: ShownContext) -> dict[str, object]:
    return {"items": list(shown.items), "lines": list(shown.lines), "tokens": shown.tokens}
