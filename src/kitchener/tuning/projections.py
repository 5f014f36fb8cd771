"""After which consolidation was a turn shown something else? It runs again with the memory as it was at places in between.

Everything but the memory stays as it was in the turn: its message, its labels, its past and its moment. So what is found was
changed by what was learned or taken back, not by the conversation, nor by time. Explained in `docs/replay.md`.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from kitchener.config import toml_key
from kitchener.errors import CallerError, NotOnRecord
from kitchener.ids import memory_namespace, session_of_turn
from kitchener.ledger import StoredEntry
from kitchener.ledger.format.lines import NO_END
from kitchener.memory.index import OVERLAYS, SIGNALS, fold_subject, signal_keys
from kitchener.memory.overlays import Overlay
from kitchener.memory.signals import Cut, RecordedEvent
from kitchener.memory.subject import SubjectMemory
from kitchener.records import events
from kitchener.replaying import Replays, Rerun, Shown
from kitchener.replaying.tape import Tape, TurnTape
from kitchener.tuning.bisection import bisection

_LEARNED: Final = ("ART-", "OVL-")
"""How ids of learned lines begin."""
_IDS: Final = (*_LEARNED, "T-", "INT-", "INV-", "WO-")
"""How ids begin of all that a turn may be shown."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is looked for."""

    session_id: str
    """Of the turn that shows the change."""
    bad: str | None = None
    """The turn that is run again; None: the session's last one that can be."""
    good: str | None = None
    """A turn at whose beginning it was not so yet, of any session of the subject; None: when nothing was known."""
    item: str | None = None
    """The id of what came or went (a learned line's is its artifact's), or words of a learned line; None: anything shown."""
    every: bool = False
    """Every change in between, in order; it takes a run for each entry."""


@dataclass(frozen=True, slots=True)
class Change:
    """An entry of the overlays ledger, and what the turn is shown before and after it."""

    entry: StoredEntry
    overlay: Overlay | None
    """The artifact that it is about; None: it puts something in quarantine."""
    sources: tuple[RecordedEvent, ...]
    """The events that the artifact was learned from, oldest first."""
    before: Shown
    after: Shown

    def lines(self) -> Iterator[str]:
        """Learned lines and other items that went, each after a `-`, then those that came, after a `+`."""
        for sign, mine, other in (("-", self.before, self.after), ("+", self.after, self.before)):
            yield from (f"{sign} {line}" for line in mine.lines if line not in other.lines)
            yield from (f"{sign} {item}" for item in mine.items if item not in other.items and not item.startswith(_LEARNED))

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON types."""
        payload, overlay = events.read_payload(self.entry.entry_type, self.entry.payload), self.overlay
        names = ("reason", "superseded_by", "target", "weight")
        return {
            "entry": {
                "ledger_id": self.entry.ledger_id,
                "seq": self.entry.seq,
                "entry_id": self.entry.entry_id,
                "entry_type": self.entry.entry_type,
                "at": self.entry.timestamp,
                **{name: payload[name] for name in names if name in payload},
            },
            "artifact_id": None if overlay is None else overlay.key,
            "signal_id": None if overlay is None else overlay.signal_id,
            "line": None if overlay is None else overlay.line,
            "gate_snapshot": None if overlay is None else overlay.gate_snapshot,
            "source_events": [each._asdict() for each in self.sources],
            "diff": list(self.lines()),
            "before": _as_json(self.before),
            "after": _as_json(self.after),
        }


@dataclass(frozen=True, slots=True)
class BisectReport:
    """What was found."""

    question: Question
    turn_id: str
    subject_id: str
    between: int
    """Entries of the subject's memory between both ends."""
    probes: int
    """Times that the turn was run again."""
    changes: tuple[Change, ...]
    """One, or with `every` all; empty: nothing changed."""
    at_good: Shown
    at_bad: Shown
    is_shown: bool | None
    """Whether the item that is looked for is shown at the bad end; None: none is looked for."""
    is_exact: bool
    """Whether the turn, run again as it was, is shown what is on record; else settings have changed."""

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON types."""
        names = ("turn_id", "subject_id", "between", "probes", "is_shown", "is_exact")
        return {
            **asdict(self.question),
            **{name: getattr(self, name) for name in names},
            "at_good": _as_json(self.at_good),
            "at_bad": _as_json(self.at_bad),
            "changes": [each.as_json() for each in self.changes],
        }


async def bisect(
    replays: Replays, question: Question, *, probed: Callable[[int], object] = lambda between: None
) -> BisectReport:
    """Finds an entry of the overlays ledger after which a turn is shown something else.

    Args:
        replays: of the turn's agent class
        question: what is looked for
        probed: called with the number of entries in between after each run of the turn

    Raises:
        UnknownSession: the session is not on record
        NotOnRecord: a turn or item is not, the turn cannot be run again, or the memory is off
        CallerError: the ends lie the wrong way round, or belong to different subjects
    """
    run = Rerun(replays, await replays.tape_of(question.session_id))
    bad = _turn_of(run.tape, question.bad)
    subject_id = str(bad.started.payload["subject_id"])
    subject = await _memory_of(replays, bad, subject_id)
    low, high = await _learned_to(replays, run.tape, question.good, subject_id), _position(bad)
    if low > high:
        raise CallerError(f"--good {question.good!r}: expected a turn that began before --bad {bad.turn_id!r} did")
    (key,) = signal_keys("", {"namespace": subject.namespace})
    reader = replays.recorded.readers[OVERLAYS]
    entries = [entry async for entry in reader.read(key=key, after_seq=low, up_to_seq=high)]
    looked_for = _looked_for(question.item, run.tape, subject, Cut(NO_END, NO_END, high), subject_id)
    search = _Search(run, bad, [low, *(entry.seq for entry in entries)], looked_for, probed)
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


class _Search:
    """A turn, run again at places of the overlays ledger; each at most once."""

    def __init__(
        self, run: Rerun, turn: TurnTape, places: list[int], looked_for: str | None, probed: Callable[[int], object]
    ) -> None:
        self._run, self._turn, self._places, self._looked_for, self._probed = run, turn, places, looked_for, probed
        self._found: dict[int, Shown] = {}
        self.recorded_items: tuple[str, ...] = ()
        """What the turn was shown on record."""

    @property
    def probes(self) -> int:
        """Runs so far."""
        return len(self._found)

    async def shown(self, n: int) -> Shown:
        """What the turn is shown at a place."""
        if n not in self._found:
            self._found[n] = await self._run.view(self._turn, self._places[n])
            self.recorded_items = self._run.tape.visible_items()
            self._probed(len(self._places))
        return self._found[n]

    async def one_change(self) -> list[int]:
        """A place at which the answer is the last one's, and at the one before it is the first one's; none where both agree."""
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
        """Each place at which the answer is another one than at the place before."""
        return [n for n in range(1, len(self._places)) if await self._differ(n - 1, n)]

    async def _differ(self, one: int, other: int) -> bool:
        return self._answer(await self.shown(one)) != self._answer(await self.shown(other))

    def _answer(self, shown: Shown) -> object:
        return (shown.items, shown.text) if self._looked_for is None else _has(shown, self._looked_for)


def _has(shown: Shown, wanted: str) -> bool:
    """Whether an item is shown, by its id or by words of a learned line."""
    if wanted.startswith(_IDS):
        return wanted in shown.items
    return any(wanted in line.casefold() for line in shown.lines)


def _turn_of(tape: Tape, turn_id: str | None) -> TurnTape:
    """The turn that is to be run again."""
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
    """Everything known of the turn's subject."""
    recorded, agent_class = replays.recorded, replays.agent_class
    if recorded.memory is None:
        table = toml_key(("agents", agent_class))
        raise NotOnRecord(
            f"long-term memory of {agent_class} is off, so no turn is shown a learned line;"
            f" `ho3_enabled = true` below [{table}] of kitchener.toml turns it on"
        )
    if not turn.started.payload.get("memory", True):
        raise NotOnRecord(f"turn {turn.turn_id!r} ran without memory, so nothing that was learned could change it")
    signals, overlays = recorded.readers.get(SIGNALS), recorded.readers.get(OVERLAYS)
    if signals is None or overlays is None:
        raise NotOnRecord(
            f"agent class {agent_class!r} has no memory on record; `kitchener memory signals` shows what there is"
        )
    return await fold_subject(memory_namespace(agent_class, subject_id), signals, overlays)


async def _learned_to(replays: Replays, tape: Tape, turn_id: str | None, subject_id: str) -> int:
    """The entry of the overlays ledger up to which a turn could read; 0 where none is named."""
    if turn_id is None:
        return 0
    session_id = session_of_turn(turn_id)
    if session_id is None:
        raise CallerError(f"{turn_id!r} is not a turn id: expected T-, the session's hex digits, - and six digits")
    theirs = tape if session_id == tape.session_id else await replays.tape_of(session_id)
    turn = next((each for each in theirs.turns if each.turn_id == turn_id), None)
    if turn is None:
        raise NotOnRecord(f"turn {turn_id!r} is not on record; `kitchener session show {session_id}` lists the turns there are")
    if (whose := turn.started.payload["subject_id"]) != subject_id:
        raise CallerError(f"--good {turn_id!r} is a turn of {whose!r}: expected one of {subject_id!r}, as --bad is")
    return _position(turn)


def _position(turn: TurnTape) -> int:
    return int(turn.started.payload["read_positions"].get(OVERLAYS, 0))


def _looked_for(item: str | None, tape: Tape, subject: SubjectMemory, cut: Cut, subject_id: str) -> str | None:
    """The item as it is compared; raises NotOnRecord where the turn could not have been shown it."""
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
            f"--item {item!r:.80}: the turn could not have been shown it;"
            f" `kitchener memory biases --all --subject {subject_id}` shows what was learned:"
            " expected an ART-…, a turn or intent of the session, or words of a learned line"
        )
    return item if item.startswith(_IDS) else item.casefold()


def _change(entry: StoredEntry, subject: SubjectMemory, before: Shown, after: Shown) -> Change:
    key = entry.payload.get("artifact_id") or entry.payload.get("overlay_id")
    cut = Cut(NO_END, NO_END, entry.seq)
    overlay = subject.overlay(str(key), cut) if key is not None else None
    sources = () if overlay is None else subject.recorded(overlay.source_event_ids, cut)
    return Change(entry, overlay, tuple(sources), before, after)


def _as_json(shown: Shown) -> dict[str, Any]:
    return {"items": list(shown.items), "lines": list(shown.lines), "tokens": shown.tokens}
