"""Turns signal ids into their stored form, and the events of a signal into counts with decay. Pure.

A signal is a counted event such as `intent:question` or `tool:read_file`; this module ignores its meaning. Events arrive in
ledger order, and a ledger's timestamps never decrease, so the state as of a moment is a prefix. Explained in `docs/memory.md`.
"""

import hashlib
import math
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from kitchener.errors import CallerError, InvalidSignal
from kitchener.memory.timestamps import HOUR_US
from kitchener.times import datetime_of

MAX_VALUE_CHARS: Final = 64
_MAX_ID_CHARS: Final = 1_024
_OTHER = re.compile(r"[^A-Za-z0-9_.\-/]+")
_SPEAKS = re.compile(r"[A-Za-z0-9]")
_KEYED = re.compile(r"~[0-9a-f]{32}")
SPEECH_ACTS: Final = ("greeting", "farewell", "thanks", "question", "command", "tool_query", "statement", "feedback")
"""The kinds of messages that a classification distinguishes."""
_CLOSED: Final = frozenset(
    (*(f"intent:{each}" for each in SPEECH_ACTS), *(f"outcome:{each}" for each in ("success", "failed", "unknown")))
)
_DIGEST_OPENING: Final = b"\0signal\0"
"""Prefix of a signal's digest input. No JSON or text starts with it, so no other content has the same digest."""
_LN_2 = math.log(2)


@dataclass(frozen=True, slots=True)
class SignalAccumulator:
    """Counts and times of one signal's events as of a moment."""

    signal_id: str
    """`kind:value`"""
    count: int
    """Number of events; each event id counts once."""
    last_seen: datetime
    """Time of the newest counted event, UTC."""
    first_seen: datetime
    """Time of the oldest counted event, UTC."""
    session_ids: tuple[str, ...]
    """Sessions of the counted events, in order of first appearance."""
    event_ids: tuple[str, ...]
    """Ids of the counted events, in ledger order."""
    decay: float
    """1.0 for a signal just seen; halves with each half-life since `last_seen`."""


class SignalEvent(NamedTuple):
    """One logged event."""

    seq: int
    """Number of the event's entry in the signals ledger."""
    logged_us: int
    """Timestamp of the entry, microseconds since the epoch; "as of" compares this one."""
    seen_us: int
    """The event's own timestamp, microseconds since the epoch."""
    event_id: str
    """`EVT-…`"""
    session_id: str
    turn_id: str
    """Turn of the event; "": none was given."""


class RecordedEvent(NamedTuple):
    """One event as an explanation of an artifact shows it."""

    event_id: str
    """`EVT-…`"""
    signal_id: str
    session_id: str
    timestamp: str
    """ISO time of the event."""
    turn_id: str | None
    """Turn of the event; None: none was given."""
    co_signals: tuple[str, ...]
    """The other signals of that turn, in alphabetical order."""


class Cut(NamedTuple):
    """The part of a subject's memory that a question sees: entries up to a moment and up to a number in each ledger."""

    as_of_us: int
    """Entries with a later timestamp are ignored; microseconds since the epoch."""
    signals_seq: int
    """Entries of the signals ledger with a higher number are ignored."""
    overlays_seq: int
    """Entries of the overlays ledger with a higher number are ignored."""


class SignalLog:
    """The events of one signal of one namespace, packed, because a subject may have thousands."""

    __slots__ = ("_event_ids", "_logged", "_seen", "_seqs", "_sessions", "_turns", "first_in")

    def __init__(self) -> None:
        self._seqs, self._logged, self._seen = array("q"), array("q"), array("q")
        self._event_ids: list[str] = []
        self._sessions: list[str] = []
        self._turns: list[str] = []
        self.first_in: dict[str, int] = {}
        """Session id to the position of the session's first event."""

    def __len__(self) -> int:
        return len(self._event_ids)

    def append(self, seq: int, logged_us: int, seen_us: int, event_id: str, session_id: str, turn_id: str) -> None:
        """Appends the next event, given by the fields of `SignalEvent`."""
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
        """Number of events before a cut. They are a prefix, because numbers and timestamps of a ledger never decrease."""
        if not self._seqs or (self._logged[-1] <= cut.as_of_us and self._seqs[-1] <= cut.signals_seq):
            return len(self._seqs)
        return min(bisect_right(self._logged, cut.as_of_us), bisect_right(self._seqs, cut.signals_seq))

    def tally(self, cut: Cut, without: Collection[str]) -> tuple[int, int]:
        """Numbers of events and of sessions at a cut, without the event ids in `without`."""
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
        """The counts at a cut, without the event ids in `without`; None: no event is left."""
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
        """The events before a cut, in ledger order."""
        return (self[n] for n in range(self.length_at(cut)))

    def ordinal(self, session_id: str, turn_id: str) -> int:
        """1 + the number of this signal's events in a turn of a session."""
        where = zip(self._sessions, self._turns, strict=True)
        return 1 + sum(1 for session, turn in where if session == session_id and turn == turn_id)


def decay(hours: float, half_life_hours: float) -> float:
    """The remaining share after some hours, 0 to 1; 1.0 for negative hours."""
    return math.exp(-_LN_2 / half_life_hours * max(0.0, hours))


def normalise(signal_id: str, kinds: Collection[str]) -> str:
    """Restricts a signal id to the characters and length that a ledger accepts; models and tools may give any text.

    Each run of characters outside `A-Z a-z 0-9 _ . - /` becomes `_`; the value is cut to 64 characters. A keyed value stays
    unchanged.

    Args:
        signal_id: `kind:value`
        kinds: the allowed kinds

    Raises:
        InvalidSignal: the kind is not allowed, or nothing is left of the value
    """
    kind, colon, value = signal_id.partition(":") if isinstance(signal_id, str) else ("", "", "")
    if not colon or kind not in kinds:
        raise InvalidSignal(signal_id, f"expected kind:value with a kind out of {', '.join(sorted(kinds))}")
    plain = value if _KEYED.fullmatch(value) else normalise_value(value)
    if plain is None:
        raise InvalidSignal(signal_id, "expected a value with at least one of A-Z, a-z, 0-9")
    return f"{kind}:{plain}"


def normalise_value(value: str) -> str | None:
    """The value part of a signal id in its stored form; None: no Latin letter or digit is left."""
    plain = _OTHER.sub("_", value)[:MAX_VALUE_CHARS]
    # Every text without a Latin letter or digit becomes `_`, and one signal for all of them would mean nothing.
    return plain if _SPEAKS.search(plain) else None


def has_closed_words(signal_id: str) -> bool:
    """Whether users cannot choose the words of this signal, because it is from a closed set or names a registered tool."""
    return signal_id in _CLOSED or signal_id.startswith("tool:")


def keyed_id(signal_id: str, digest: Callable[[bytes], str]) -> str:
    """A signal id in its stored form: `kind:~` and 32 hex digits if digests are keyed, otherwise unchanged.

    Args:
        signal_id: the id in words
        digest: `content_digest` of the ledger for the signal's subject
    """
    method, _, digits = digest(_DIGEST_OPENING + signal_id.encode()).partition(":")
    return f"{signal_id.partition(':')[0]}:~{digits[:32]}" if method == "hmac-sha256" else signal_id


def plain_id(what: str, value: object, prefix: str = "") -> str:
    """Checks an id from a caller and returns it as plain `str`.

    Args:
        what: the argument's name, for the error
        value: the id
        prefix: the prefix that the id must have

    Raises:
        CallerError: it is not text, is empty or too long, lacks the prefix, or contains unprintable characters
    """
    if (
        isinstance(value, str)
        and len(prefix) < len(value) <= _MAX_ID_CHARS
        and value.startswith(prefix)
        and value.isprintable()
    ):
        return str.__str__(value)  # a member of a string enumeration is a subclass of str
    expected = f"{prefix}… of" if prefix else "1 to"
    raise CallerError(f"{what} = {value!r:.80}: expected {expected} {_MAX_ID_CHARS} printable characters; nothing was written")


def events_of_turn(session_id: str, turn_id: str, stored_ids: Iterable[str]) -> dict[str, str]:
    """Event ids with their signals, in the order of the event ids, which is the order in which a ledger returns them.

    Args:
        session_id: the session
        turn_id: the turn
        stored_ids: the signals of the turn, in the form that ledgers store; a signal may occur several times
    """
    counted, found = dict[str, int](), dict[str, str]()
    for stored_id in stored_ids:
        n = counted[stored_id] = counted.get(stored_id, 0) + 1
        found[event_id(session_id, turn_id, stored_id, n)] = stored_id
    return dict(sorted(found.items()))


def event_id(session_id: str, turn_id: str, signal_id: str, n: int) -> str:
    """The id of the n-th event of a signal in a turn; derived, so a replay of the turn gives the same id."""
    return f"EVT-{hashlib.sha256(f'{session_id}|{turn_id}|{signal_id}|{n}'.encode()).hexdigest()[:16]}"
