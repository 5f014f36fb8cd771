"""Signals: what their ids may look like, how their events add up, how they fade. Pure.

A signal is a counted event such as `intent:question` or `tool:read_file`; it has no meaning here. Events come in the order
of the ledger, whose timestamps never decrease, so everything as of a moment is a prefix. Explained in `docs/memory.md`.
"""

import hashlib
import math
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple

from kitchener.errors import CallerError, InvalidSignal
from kitchener.memory.moments import HOUR_US, datetime_of

MAX_VALUE_CHARS: Final = 64
_MAX_ID_CHARS: Final = 1_024
_MAX_KEPT_CHARS: Final = 100
_OTHER = re.compile(r"[^A-Za-z0-9_.\-/]+")
_SPEAKS = re.compile(r"[A-Za-z0-9]")
_KEYED = re.compile(r"~[0-9a-f]{32}")
SPEECH_ACTS: Final = ("greeting", "farewell", "thanks", "question", "command", "tool_query", "statement", "feedback")
"""What a message can be, as a classification names it."""
_CLOSED: Final = frozenset(
    (*(f"intent:{each}" for each in SPEECH_ACTS), *(f"outcome:{each}" for each in ("success", "failed", "unknown")))
)
_DIGEST_OPENING: Final = b"\0signal\0"
"""Begins no JSON and no text, so a signal's digest is never that of other content."""
_LN_2 = math.log(2)


@dataclass(frozen=True, slots=True)
class SignalAccumulator:
    """What the events of one signal add up to as of some moment."""

    signal_id: str
    """`kind:value`"""
    count: int
    """Events, each id once."""
    last_seen: datetime
    """The newest event, UTC."""
    first_seen: datetime
    """The oldest event that counts, UTC."""
    session_ids: tuple[str, ...]
    """The sessions they came in, in order of first appearance."""
    event_ids: tuple[str, ...]
    """All of them, oldest first."""
    decay: float
    """1.0 for a signal just seen, half after each half-life."""


class SignalEvent(NamedTuple):
    """One event, as it was logged."""

    seq: int
    """Its number in the signals ledger."""
    logged_us: int
    """Its entry's timestamp, microseconds since the epoch: what "as of" compares."""
    seen_us: int
    """The event's own timestamp, microseconds since the epoch."""
    event_id: str
    """`EVT-…`"""
    session_id: str
    """In which session."""
    turn_id: str
    """In which turn; "" where none was named."""


class RecordedEvent(NamedTuple):
    """One event as it is shown to whoever asks what stands behind an artifact."""

    event_id: str
    """`EVT-…`"""
    signal_id: str
    """Of which signal."""
    session_id: str
    """In which session."""
    timestamp: str
    """ISO time of the event."""
    turn_id: str | None
    """In which turn; None where none was named."""
    co_signals: tuple[str, ...]
    """The other signals of that turn, in alphabetical order."""


class Cut(NamedTuple):
    """How much of a subject's memory counts: what was logged up to a moment and up to places in the two ledgers."""

    as_of_us: int
    """Later entries are ignored; microseconds since the epoch."""
    signals_seq: int
    """Later entries of the signals ledger are ignored."""
    overlays_seq: int
    """Later entries of the overlays ledger are ignored."""


class SignalLog:
    """The events of one signal of one namespace, packed: a subject may have thousands."""

    __slots__ = ("_event_ids", "_logged", "_seen", "_seqs", "_sessions", "_turns", "first_in")

    def __init__(self) -> None:
        self._seqs, self._logged, self._seen = array("q"), array("q"), array("q")
        self._event_ids: list[str] = []
        self._sessions: list[str] = []
        self._turns: list[str] = []
        self.first_in: dict[str, int] = {}
        """Position of the first event of each session; its length is the number of sessions."""

    def __len__(self) -> int:
        return len(self._event_ids)

    def append(self, seq: int, logged_us: int, seen_us: int, event_id: str, session_id: str, turn_id: str) -> None:
        """Takes the fields of the next event, in the order of `SignalEvent`."""
        self.first_in.setdefault(session_id, len(self._event_ids))
        self._seqs.append(seq)
        self._logged.append(logged_us)
        self._seen.append(seen_us)
        self._event_ids.append(event_id)
        self._sessions.append(session_id)
        self._turns.append(turn_id)

    def __getitem__(self, position: int) -> SignalEvent:
        return SignalEvent(
            self._seqs[position],
            self._logged[position],
            self._seen[position],
            self._event_ids[position],
            self._sessions[position],
            self._turns[position],
        )

    def length_at(self, cut: Cut) -> int:
        """How many of the events count: a prefix, because neither numbers nor timestamps of a ledger ever decrease."""
        if not self._seqs or (self._logged[-1] <= cut.as_of_us and self._seqs[-1] <= cut.signals_seq):
            return len(self._seqs)
        return min(bisect_right(self._logged, cut.as_of_us), bisect_right(self._seqs, cut.signals_seq))

    def tally(self, cut: Cut, without: Collection[str]) -> tuple[int, int]:
        """Number of events and of sessions at a cut, leaving out some events."""
        length = self.length_at(cut)
        if not without:
            if length == len(self._seqs):
                return length, len(self.first_in)
            return length, len(set(self._sessions[:length]))
        kept = [self._sessions[n] for n in range(length) if self._event_ids[n] not in without]
        return len(kept), len(set(kept))

    def accumulate(
        self, signal_id: str, cut: Cut, without: Collection[str], half_life_hours: float
    ) -> SignalAccumulator | None:
        """What the events add up to at a cut; None where none is left."""
        kept = [event for event in self.events(cut) if event.event_id not in without]
        if not kept:
            return None
        last_us = max(event.seen_us for event in kept)
        return SignalAccumulator(
            signal_id=signal_id,
            count=len(kept),
            last_seen=datetime_of(last_us),
            first_seen=datetime_of(min(event.seen_us for event in kept)),
            session_ids=tuple(dict.fromkeys(event.session_id for event in kept)),
            event_ids=tuple(event.event_id for event in kept),
            decay=decay((cut.as_of_us - last_us) / HOUR_US, half_life_hours),
        )

    def events(self, cut: Cut) -> Iterator[SignalEvent]:
        """The events that count, oldest first."""
        return (self[n] for n in range(self.length_at(cut)))

    def ordinal(self, session_id: str, turn_id: str) -> int:
        """1 + the number of its events in a turn of a session."""
        where = zip(self._sessions, self._turns, strict=True)
        return 1 + sum(1 for session, turn in where if session == session_id and turn == turn_id)


def decay(hours: float, half_life_hours: float) -> float:
    """The share that is left after some hours; 1.0 for moments that lie ahead."""
    return math.exp(-_LN_2 / half_life_hours * max(0.0, hours))


def normalise(signal_id: str, kinds: Collection[str]) -> str:
    """The signal id as it may stand in a ledger: a model can invent labels, and a tool's id may hold anything.

    Each run of characters outside `A-Z a-z 0-9 _ . - /` becomes `_`; the value is cut to 64 characters. A keyed value stays.

    Args:
        signal_id: `kind:value`
        kinds: the kinds there are

    Raises:
        InvalidSignal: no such kind, or nothing is left of the value
    """
    # A turn names each of its signals several times, and a deployment has few; a long one is no label, and not worth keeping.
    if type(kinds) is frozenset and isinstance(signal_id, str) and len(signal_id) <= _MAX_KEPT_CHARS:
        return _kept(signal_id, kinds)
    return _normalised(signal_id, kinds)


def _normalised(signal_id: str, kinds: Collection[str]) -> str:
    kind, colon, value = signal_id.partition(":") if isinstance(signal_id, str) else ("", "", "")
    if not colon or kind not in kinds:
        raise InvalidSignal(signal_id, f"expected kind:value with a kind out of {', '.join(sorted(kinds))}")
    plain = value if _KEYED.fullmatch(value) else normalise_value(value)
    if plain is None:
        raise InvalidSignal(signal_id, "expected a value with at least one of A-Z, a-z, 0-9")
    return f"{kind}:{plain}"


_kept = lru_cache(4_096)(_normalised)


def normalise_value(value: str) -> str | None:
    """The value part of a signal id; None where nothing is left that could tell it from others."""
    plain = _OTHER.sub("_", value)[:MAX_VALUE_CHARS]
    # What is only `_` stands for any text without a Latin letter or digit: one signal for all of them would teach nothing.
    return plain if _SPEAKS.search(plain) else None


def has_closed_words(signal_id: str) -> bool:
    """Whether nobody who talks with an agent can word this signal: it comes from a closed set, or names a registered tool."""
    return signal_id in _CLOSED or signal_id.startswith("tool:")


def keyed_id(signal_id: str, digest: Callable[[bytes], str]) -> str:
    """A signal id as a ledger holds it: `kind:~` and 32 hex digits where digests are keyed, else itself.

    Args:
        signal_id: in words
        digest: `content_digest` of its ledger for its subject
    """
    method, _, digits = digest(_DIGEST_OPENING + signal_id.encode()).partition(":")
    return f"{signal_id.partition(':')[0]}:~{digits[:32]}" if method == "hmac-sha256" else signal_id


def plain_id(what: str, value: object, prefix: str = "") -> str:
    """An id that the caller gives, as plain text.

    Args:
        what: what it names, for the error
        value: the id
        prefix: how it must begin

    Raises:
        CallerError: it is no text, empty, too long, begins otherwise, or holds what cannot be printed
    """
    if (
        isinstance(value, str)
        and len(prefix) < len(value) <= _MAX_ID_CHARS
        and value.startswith(prefix)
        and value.isprintable()
    ):
        return str.__str__(value)  # an enumeration's member is text of another type
    expected = f"{prefix}… of" if prefix else "1 to"
    raise CallerError(f"{what} = {value!r:.80}: expected {expected} {_MAX_ID_CHARS} printable characters; nothing was written")


def known_id(what: str, value: object) -> str:
    """`plain_id` for ids that come again and again: all signals of a turn name their session and their turn."""
    return _kept_id(what, value) if type(value) is str else plain_id(what, value)


_kept_id = lru_cache(1_024)(plain_id)


def event_id(session_id: str, turn_id: str, signal_id: str, n: int) -> str:
    """The id of the n-th event of a signal in a turn: the same turn replayed gives the same ids."""
    return f"EVT-{hashlib.sha256(f'{session_id}|{turn_id}|{signal_id}|{n}'.encode()).hexdigest()[:16]}"
