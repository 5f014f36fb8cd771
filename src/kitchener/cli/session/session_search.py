"""Finds sessions by subject, time and words, and the turns in which the words were said. Takes no lock."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NotRequired, TypedDict

from kitchener.cli.options import Options
from kitchener.clock import SystemClock
from kitchener.errors import CallerError, InvalidTimestamp
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.shown_text import one_line, short_time
from kitchener.ledger import LedgerReader
from kitchener.memory.timestamps import us_of
from kitchener.plain_names import counted, quoted
from kitchener.records import events
from kitchener.records.entries import (
    MessageImportedPayload,
    SealedText,
    TurnCompletedPayload,
    TurnStartedPayload,
    payload_as,
)
from kitchener.records.index_keys import SESSIONS_KEY
from kitchener.runtime.queries.session_list import SessionInfo, happened_at, session_info
from kitchener.sealed_values import is_sealed
from kitchener.times import iso_of

_AGO = re.compile(r"([0-9]{1,6})([mhd])", re.ASCII)
_UNITS_US: Final = {"m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_DAY: Final = len("2026-02-18")
_EXCERPT: Final = 90
"""Most printed characters of a text around the words."""
_BEFORE: Final = 30
_AT_MOST: Final = 5
"""Most printed turns of one session; JSON has all."""


class FoundTurn(TypedDict):
    """A message or a reply with the words that were looked for."""

    turn_id: str
    at: str
    speaker: Literal["user", "agent"]
    text: str


class SessionRow(TypedDict):
    """A session as `session list` prints it, with what its search found."""

    session_id: str
    agent_class: str
    subject_id: str
    external_id: str | None
    started_at: str
    last_at: str
    turns: int
    ended: bool
    found: NotRequired[list[FoundTurn]]
    """The turns that have the words, oldest first; absent: no words were given."""


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """Selects sessions."""

    subject_id: str | None = None
    words: str | None = None
    """Words in a message or a reply, folded by `searchable`; None: any words."""
    since: str | None = None
    """Start of the time range: ISO time as ledgers write it; None: no start."""

    @property
    def is_any(self) -> bool:
        """Whether every session is wanted."""
        return self == SessionFilter()


@dataclass(slots=True)
class SessionList:
    """Sessions, oldest first."""

    rows: list[SessionRow] = field(default_factory=list)
    sealed: int = 0
    """Number of messages and replies that could not be searched, because their key is missing."""


def searchable(text: str) -> str:
    """A text without regard to upper and lower case, line breaks and repeated blanks."""
    return " ".join(text.split()).casefold()


def moment_of(text: str, now_us: int) -> str:
    """The time that `--since` names, as ledgers write it.

    Args:
        text: `30m`, `12h` or `7d` ago, a day (UTC), or an ISO time with a zone
        now_us: the time now, microseconds since the epoch

    Raises:
        CallerError: the text has none of these forms
    """
    try:
        if ago := _AGO.fullmatch(text):
            return iso_of(now_us - int(ago[1]) * _UNITS_US[ago[2]])
        return iso_of(us_of(f"{text}T00:00:00+00:00" if len(text) == _DAY else text, "--since"))
    except (InvalidTimestamp, ValueError, OverflowError) as error:
        expected = "30m, 12h, 7d, a day such as 2026-02-18, or an ISO time with a zone"
        raise CallerError(f"--since {quoted(text)}: expected {expected}") from error


def filter_of(subject: str | None, words: str | None, since: str | None) -> SessionFilter:
    """The filter that a command's options define.

    Raises:
        CallerError: there are no words to look for, or the time is malformed
    """
    wanted = None if words is None else searchable(words)
    if wanted == "":
        raise CallerError("--grep: expected words to look for")
    return SessionFilter(subject, wanted, None if since is None else moment_of(since, SystemClock().time_us()))


async def search_sessions(options: Options, wanted: SessionFilter, limit: int | None) -> SessionList:
    """The newest `limit` sessions that match: of the agent class; of all classes if none is named and there is a filter, or no
    class that is meant without a name."""
    paths, found = options.paths(), SessionList()
    is_of_one = options.named_agent is not None or (wanted.is_any and options.has_agent)
    for agent_class in [options.agent] if is_of_one else sorted({options.first_agent, *paths.agent_classes()}):
        await _add(found, paths, agent_class, wanted, limit)
    found.rows.sort(key=lambda row: (row["started_at"], row["session_id"]))
    found.rows = found.rows[-limit:] if limit is not None else found.rows
    return found


async def _add(found: SessionList, paths: LedgerPaths, agent_class: str, wanted: SessionFilter, limit: int | None) -> None:
    """Adds the wanted sessions of an agent class."""
    async with paths.reader(agent_class) as reader:
        if reader is None:
            return
        said = await _found_texts(reader, wanted, found) if wanted.words is not None else None
        if limit is not None and wanted.is_any:
            starts = await reader.last(key=SESSIONS_KEY, limit=limit)
        else:
            starts = [entry async for entry in reader.read(key=SESSIONS_KEY)]
        ended = {entry.entity_id async for entry in reader.read(key="ended")}
        for start in starts:
            if wanted.subject_id not in (None, events.read_common(start).get("subject_id")):
                continue
            if said is not None and start.entity_id not in said:
                continue
            row = _row(agent_class, await session_info(reader, start, is_ended=start.entity_id in ended))
            if said is not None:
                row["found"] = said[start.entity_id]
            if wanted.since is None or row["last_at"] >= wanted.since:
                found.rows.append(row)


async def _found_texts(reader: LedgerReader, wanted: SessionFilter, found: SessionList) -> dict[str, list[FoundTurn]]:
    """The messages and replies with the wanted words, by session. Reads the whole ledger, each text once."""
    said: dict[str, list[FoundTurn]] = defaultdict(list)
    async for entry in reader.read(entry_type=(events.TURN_STARTED, events.TURN_COMPLETED, events.MESSAGE_IMPORTED)):
        if wanted.since is not None and happened_at(entry) < wanted.since:
            continue
        payload = events.read_payload(entry.entry_type, entry.payload)
        if wanted.subject_id not in (None, events.read_common(entry).get("subject_id")):
            continue
        is_message, text = _spoken(entry.entry_type, payload)
        if is_sealed(text):
            found.sealed += 1
        elif isinstance(text, str) and wanted.words is not None and wanted.words in searchable(text):
            turn: FoundTurn = {
                "turn_id": entry.entity_id,
                "at": happened_at(entry),
                "speaker": "user" if is_message else "agent",
                "text": text,
            }
            said[events.read_common(entry)["session_id"]].append(turn)
    return said


def _spoken(entry_type: str, payload: Mapping[str, object]) -> tuple[bool, SealedText]:
    """Whether an entry holds a message rather than a reply, and its text."""
    if entry_type == events.MESSAGE_IMPORTED:
        imported = payload_as(MessageImportedPayload, payload)
        return imported["role"] == "user", imported["text"]
    if entry_type == events.TURN_STARTED:
        return True, payload_as(TurnStartedPayload, payload)["user_message"]
    return False, payload_as(TurnCompletedPayload, payload)["response"]


def _row(agent_class: str, info: SessionInfo) -> SessionRow:
    return {
        "session_id": info.session_id,
        "agent_class": agent_class,
        "subject_id": info.subject_id,
        "external_id": info.external_id,
        "started_at": info.started_at,
        "last_at": info.last_at,
        "turns": info.turns,
        "ended": info.is_ended,
    }


def found_lines(rows: list[SessionRow], words: str) -> Iterator[str]:
    """Sessions with the turns in which the words were said, and how to see why.

    Args:
        rows: the sessions
        words: the search words, folded
    """
    newest = ""
    for row in rows:
        turns = row.get("found", [])
        newest = turns[-1]["turn_id"]
        yield f"{row['session_id']} of {row['subject_id']} ({row['agent_class']}), {counted(row['turns'], 'turn')}"
        for each in turns[:_AT_MOST]:
            yield f"  {each['turn_id']}  {short_time(each['at'])}  {each['speaker']}: {_excerpt(each['text'], words)}"
        if len(turns) > _AT_MOST:
            yield f"  and {len(turns) - _AT_MOST} more; --json has them all"
    yield f"= what the model saw in one of them, and why: kitchener context explain {newest}"


def _excerpt(text: str, words: str) -> str:
    """A piece of the text around the words. If folding makes a text longer, the piece may be slightly off."""
    flat = " ".join(text.split())
    begins = max(0, flat.casefold().find(words) - _BEFORE)
    return one_line(("…" if begins else "") + flat[begins:], _EXCERPT)
