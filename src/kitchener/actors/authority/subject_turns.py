"""Reads the completed turns of a subject from HO2m, as evidence that a projection may recall.

The turns and their words are read once, through the ledger's index. After that, each turn of this process is added as it
completes. All sessions of the subject share these turns, and their size in memory is limited. A turn can recall only turns that
HO2m had when the turn started.
"""

from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

from kitchener.actors.authority.ranking import TurnWords, words_under
from kitchener.context import Item, Ruleset, evidence_item
from kitchener.context.fold.context_events import Brought, Said, read_event
from kitchener.context.fold.items import LINE, OF_MESSAGE, recalled, said_item
from kitchener.ledger import ReadableLedger, StoredEntry
from kitchener.records import events
from kitchener.records.entries import TurnCompletedPayload, TurnStartedPayload, opened, payload_as
from kitchener.records.index_keys import subject_index_key, turn_index_key
from kitchener.records.spoken import message_text, reply_text, told_reply, turn_text, with_attached
from kitchener.records.tokens import Estimator

MAX_CHARS: Final = 16_777_216
"""Most characters of turns in memory, for all subjects together. Beyond the limit, subjects are evicted: first the largest of
those that hold more than their part, then the least recently used ones. The limit also applies to each subject: its first turns
up to the limit can be recalled, later ones cannot."""
_PART: Final = 8
"""A subject that holds more than one eighth of the limit is evicted before others, so that it does not evict them."""
_SUBJECT_CHARS: Final = 500
"""Characters counted for each subject besides its turns, so that subjects with few turns or none are evicted, too."""
_TURN_CHARS: Final = 250
"""Characters counted for each turn besides its text."""
_BATCH: Final = 256
"""Turns that are read at a time."""


class SubjectView(NamedTuple):
    """The turns of one subject at one position of HO2m."""

    words: TurnWords
    """The words of all turns read so far, including turns after the position."""
    known: int
    """How many of these turns, counted from the first, existed at the position. A message and its reply count separately if
    they are separate items."""


class TurnLedgers(Protocol):
    """The ledger from which the turns of subjects are read."""

    @property
    def ho2m(self) -> ReadableLedger:
        """The supervisor's ledger."""
        ...

    @property
    def is_sole_writer(self) -> bool:
        """Whether only this process writes it."""
        ...


class _IndexedTurns:
    __slots__ = ("chars", "ids", "is_followed", "is_full", "missed", "places", "read_to", "words")

    def __init__(self, words: TurnWords) -> None:
        self.chars = 0
        self.is_followed = False
        """Whether all turns so far are noted, so that the next one can be noted when it completes."""
        self.missed = 0
        """How often turns were written without being noted when they completed."""
        self.is_full = False
        self.ids: set[str] = set()
        self.places: list[int] = []
        self.words = words
        self.read_to = 0

    @property
    def held(self) -> int:
        return _SUBJECT_CHARS + _TURN_CHARS * len(self.places) + self.chars


class SubjectTurns:
    """Caches the turns of recently used subjects, oldest turn first.

    Args:
        ledgers: the ledgers with the turns
        estimate: estimates the tokens of a turn
        ruleset: what a ranking reads, and whether a turn's message and reply are items of their own
        max_chars: most characters in memory, for all subjects together and for each
    """

    def __init__(self, ledgers: TurnLedgers, estimate: Estimator, ruleset: Ruleset, *, max_chars: int = MAX_CHARS) -> None:
        self._ledgers, self._estimate, self._ruleset = ledgers, estimate, ruleset
        self._max_chars = max_chars
        self._subjects: OrderedDict[str, _IndexedTurns] = OrderedDict()
        self._imports = Counter[str]()
        """Running imports that add turns to a subject without noting them here."""
        self._large = set[str]()
        """Subjects that hold more than their part."""
        self._held = 0
        """Characters counted for all subjects, including `_SUBJECT_CHARS` and `_TURN_CHARS`."""

    async def of(self, subject_id: str, position: int) -> SubjectView:
        """Returns the completed turns of a subject.

        Args:
            subject_id: the subject
            position: position of HO2m when the asking turn started; later turns do not count
        """
        kept = self._subjects.get(subject_id)
        if kept is None:
            kept = self._subjects[subject_id] = _IndexedTurns(words_under(self._ruleset))
            self._held += _SUBJECT_CHARS
        self._subjects.move_to_end(subject_id)
        if not kept.is_followed and kept.read_to < position:
            await self._read_on(subject_id, kept, position)
        return SubjectView(kept.words, bisect_right(kept.places, position))

    def completed(self, subject_id: str, turn_id: str, items: Sequence[Item | None]) -> None:
        """Adds a turn that was just written, so that it need not be read. Call this before anything else is written.

        Args:
            subject_id: the subject
            turn_id: the turn
            items: its message and its reply as items of a session; None: erased, or no separate item
        """
        kept = self._subjects.get(subject_id)
        if kept is None:
            return
        if not kept.is_followed or None in items:
            kept.is_followed = False
            kept.missed += 1
            return
        kept.read_to = self._ledgers.ho2m.position
        self._add(subject_id, kept, turn_id, kept.read_to, [item for item in items if item is not None])
        self._evict()

    @contextmanager
    def importing(self, subject_id: str) -> Iterator[None]:
        """Makes each `of` read a subject's new turns while the block runs, and once after it, because an import writes some."""
        self._imports[subject_id] += 1
        self._unfollow(subject_id)
        try:
            yield
        finally:
            self._imports[subject_id] -= 1
            if not self._imports[subject_id]:
                del self._imports[subject_id]
            self._unfollow(subject_id)

    def _unfollow(self, subject_id: str) -> None:
        kept = self._subjects.get(subject_id)
        if kept is not None:
            kept.is_followed = False
            kept.missed += 1  # a running read must notice it, too: it may end before the written entries

    def forget(self, subject_id: str) -> None:
        """Evicts a subject's turns from memory. The next `of` reads them again."""
        dropped = self._subjects.pop(subject_id, None)
        self._large.discard(subject_id)
        self._held -= dropped.held if dropped is not None else 0

    async def _read_on(self, subject_id: str, kept: _IndexedTurns, position: int) -> None:
        """Reads the turns that were completed since the last read, including turns after the position."""
        ho2m, missed = self._ledgers.ho2m, kept.missed
        if self._ledgers.is_sole_writer:  # turns of other writers would not be added as they complete
            position = max(position, ho2m.position)
        key, after = subject_index_key(subject_id), kept.read_to
        while not kept.is_full:
            batch = [entry async for entry in ho2m.read(key=key, after_seq=after, up_to_seq=position, limit=_BATCH)]
            if batch:
                await self._note(subject_id, kept, batch)
                after = batch[-1].seq
            if len(batch) < _BATCH:
                break
        kept.read_to = max(kept.read_to, position)
        is_whole = kept.missed == missed and subject_id not in self._imports
        kept.is_followed = self._ledgers.is_sole_writer and is_whole
        self._evict()

    def _evict(self) -> None:
        while self._held > self._max_chars and len(self._subjects) > 1:
            largest = max(self._large, key=lambda each: (self._subjects[each].held, each), default=None)
            self.forget(next(iter(self._subjects)) if largest is None else largest)

    async def _note(self, subject_id: str, kept: _IndexedTurns, batch: Sequence[StoredEntry]) -> None:
        """Adds the turns that follow those noted so far, up to the first one that does not fit."""
        started = await self._ledgers.ho2m.last_of(turn_index_key(entry.entity_id) for entry in batch)
        for entry in batch:
            began = started.get(turn_index_key(entry.entity_id))
            message = await message_in(self._ledgers.ho2m, began) if began is not None else None
            items = turn_evidence(entry, began, message, self._estimate, self._ruleset)
            self._add(subject_id, kept, entry.entity_id, entry.seq, items)

    def _add(self, subject_id: str, kept: _IndexedTurns, turn_id: str, seq: int, items: Sequence[Item]) -> None:
        if not items or turn_id in kept.ids:  # another session's turn may have read it in the meantime
            return
        chars = sum([len(item.text) for item in items])
        kept.is_full = kept.is_full or kept.held + chars > self._max_chars
        if kept.is_full:
            return
        kept.ids.add(turn_id)
        for item in items:
            kept.places.append(seq)
            kept.words.note(item)
        kept.chars += chars
        if self._subjects.get(subject_id) is kept:  # it may have been evicted during the read
            self._held += chars + _TURN_CHARS * len(items)
            if kept.held > self._max_chars // _PART:
                self._large.add(subject_id)


async def message_in(ho2m: ReadableLedger, started: StoredEntry) -> object:
    """The message that began a turn, with the names of the images and files that it brought; no text if it was erased.

    The session's own state folds the same text out of the same entries.
    """
    payload = payload_as(TurnStartedPayload, started.payload)
    message: object = payload.get("user_message")
    brought = payload.get("parts")
    if not brought or not isinstance(message, str):
        return message
    for number in range(1, len(brought) + 1):
        async for entry in ho2m.read(session_id=started.session_id, entity_id=f"{started.entity_id}.{number}"):
            event = read_event(entry)
            if event is not None and isinstance(event.facts, Brought):
                message = with_attached(message, event.facts.part)
    return message


def turn_evidence(
    entry: StoredEntry, started: StoredEntry | None, message: object, estimate: Estimator, ruleset: Ruleset
) -> tuple[Item, ...]:
    """The evidence of an entry: an imported message, or a turn's message and reply, which an older policy shows as one item.
    Empty if the text was erased.

    Args:
        entry: a `MESSAGE_IMPORTED`, or the turn's `TURN_COMPLETED`
        started: the turn's `TURN_STARTED`; None: it is missing
        message: the turn's message, from `message_in`; anything but text: it was erased, or is missing
        estimate: counts the tokens of a text
        ruleset: the policy
    """
    event = read_event(entry) if entry.entry_type == events.MESSAGE_IMPORTED else None
    if event is not None and isinstance(event.facts, Said):
        said = said_item(event, event.facts, estimate)
        return () if said.is_erased else (recalled(said),)
    completed = payload_as(TurnCompletedPayload, entry.payload)
    response, session_id = completed.get("response"), completed["session_id"]
    if started is None or not isinstance(message, str) or not isinstance(response, str):
        return ()
    speaker = opened(payload_as(TurnStartedPayload, started.payload).get("speaker"))
    response = told_reply(completed)
    if not ruleset.is_split:
        text = turn_text(message, response, speaker)
        return (evidence_item(entry.entity_id, entry.ref, entry.timestamp, text, estimate, session_id=session_id),)
    return tuple(
        [
            evidence_item(name, each.ref, each.timestamp, text, estimate, session_id=session_id, separator=LINE)
            for name, each, text in (
                (f"{entry.entity_id}{OF_MESSAGE}", started, message_text(message, speaker)),
                (entry.entity_id, entry, reply_text(response)),
            )
        ]
    )
