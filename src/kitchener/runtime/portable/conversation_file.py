"""Turns a file of JSON lines with conversations of other programs into checked conversations, one at a time.

A line is a conversation with its `messages`, or one message with its `session`. This module knows no ledger. `docs/sessions.md`
describes the format.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, NoReturn, cast, get_args

import orjson

from kitchener.actors.admission.argument_checks import MAX_NAME, check_speaker, fits_entry
from kitchener.clock import to_us
from kitchener.config import LedgerConfig, RuntimeConfig
from kitchener.config.shown import described_name
from kitchener.errors import CallerError, ConfigError
from kitchener.plain_names import is_printable, quoted
from kitchener.records.entries import Json, SpokenRole
from kitchener.small_files import NOT_REGULAR, open_regular
from kitchener.times import as_utc, iso_of

MAX_CONVERSATION_BYTES: Final = 16 * 1_048_576
"""Most bytes of one line, and of all lines of one conversation. A whole conversation is held in memory."""
_MAX_MESSAGES: Final = 4_096
"""Most messages of one conversation, even if more would fit into an entry."""
_BYTES_OF_MESSAGE: Final = 256
"""Most bytes by which the first projection of a session names a message: ledger, entry and hash."""
MAX_CONVERSATIONS: Final = 10_000
"""Most conversations of one file."""
_OF_CONVERSATION: Final = ("session", "title", "messages")
_OF_MESSAGE: Final = ("role", "content", "speaker", "time")


def max_messages(ledger: LedgerConfig) -> int:
    """Most messages of one conversation. The first turn after them must name in one entry the messages that it was shown."""
    return min(_MAX_MESSAGES, ledger.max_entry_bytes // _BYTES_OF_MESSAGE)


class SpokenMessage(NamedTuple):
    """One message of a conversation."""

    role: SpokenRole
    text: str
    speaker: str | None
    """The speaker; None: not named."""
    said_at: str
    """ISO time, UTC; "": not known."""


class SpokenConversation(NamedTuple):
    """A conversation with its messages in order."""

    name: str | None
    """The other program's name for it."""
    title: str | None
    messages: tuple[SpokenMessage, ...]

    def as_json(self) -> Json:
        return {"session": self.name, "title": self.title, "messages": [list(each) for each in self.messages]}


class ConversationFile:
    """An open file of conversations; a context manager.

    Args:
        path: the file; not a pipe, because it is read twice
        config: limits of messages and entries
        now: the present time, ISO, UTC; no message may be later

    Raises:
        ConfigError: the file cannot be read
    """

    def __init__(self, path: Path, config: RuntimeConfig, now: str) -> None:
        self._path, self._config, self._now = path, config, now
        try:
            self._file: IO[bytes] = open_regular(path)  # which does not wait for the writer of a pipe
        except (OSError, ValueError) as error:
            reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            told = f"{reason}: expected one, which can be read twice" if reason == NOT_REGULAR else f"cannot be read: {reason}"
            raise ConfigError(str(path), "", "", told) from error

    def close(self) -> None:
        """Ends the reading."""
        self._file.close()

    def __iter__(self) -> Iterator[SpokenConversation]:
        """Yields each conversation from the beginning of the file.

        Raises:
            ConfigError: a line is wrong; names file, line, field, value and what was expected
        """
        self._file.seek(0)
        names, open_one, count = set[str](), None, 0
        for number, line in self._lines():
            record = self._record(number, line)
            name = self._text(number, "session", record.get("session"), MAX_NAME)
            if open_one is not None and (name != open_one.name or "messages" in record):
                yield open_one.conversation()
                open_one = None
            if open_one is None:
                count += 1
                if count > MAX_CONVERSATIONS:
                    self._bad(number, "", "", f"has more than {MAX_CONVERSATIONS:,} conversations; split the file")
                if name in names:
                    self._bad(number, "session", quoted(name), "names a session of earlier lines; put its lines together")
                names |= {name} if name is not None else set()
            if "messages" in record:
                yield self._whole(number, record, name)
            else:
                open_one = self._continued(open_one, number, line, record, name)
        if open_one is not None:
            yield open_one.conversation()

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        number = 0
        while line := self._file.readline(MAX_CONVERSATION_BYTES + 1):
            number += 1
            if len(line) > MAX_CONVERSATION_BYTES:
                self._bad(number, "", "", f"has more than {MAX_CONVERSATION_BYTES:,} bytes")
            if line.strip():
                yield number, line

    def _record(self, number: int, line: bytes) -> Mapping[str, object]:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            self._bad(number, "", "", f"expected one JSON object ({error})")
        if not isinstance(record, dict):
            self._bad(number, "", "", "expected one JSON object")
        is_whole = "messages" in record
        self._only(number, "", record, _OF_CONVERSATION if is_whole else ("session", "title", *_OF_MESSAGE))
        if not is_whole and record.get("session") is None:
            self._bad(number, "session", "", "expected the session of a message, or a conversation with `messages`")
        return record

    def _whole(self, number: int, record: Mapping[str, object], name: str | None) -> SpokenConversation:
        given, most = record["messages"], max_messages(self._config.ledger)
        if not isinstance(given, list) or not 1 <= len(given) <= most:
            self._bad(number, "messages", quoted(given), f"expected a list of 1 to {most:,} messages")
        found, before = list[SpokenMessage](), ""
        for place, each in enumerate(given):
            at = f"messages[{place}]"
            if not isinstance(each, dict):
                self._bad(number, at, quoted(each), "expected an object with role and content")
            self._only(number, f"{at}.", each, _OF_MESSAGE)
            found.append(self._message(number, f"{at}.", each, before))
            before = found[-1].said_at
        return SpokenConversation(name, self._text(number, "title", record.get("title"), MAX_NAME), tuple(found))

    def _continued(
        self, earlier: "_Open | None", number: int, line: bytes, record: Mapping[str, object], name: str | None
    ) -> "_Open":
        """The conversation to which a line with a single message belongs."""
        known = earlier if earlier is not None else _Open(name)
        known.title = self._text(number, "title", record.get("title"), MAX_NAME) or known.title
        known.size += len(line)
        most = max_messages(self._config.ledger)
        if known.size > MAX_CONVERSATION_BYTES or len(known.messages) >= most:
            limits = f"{most:,} messages and {MAX_CONVERSATION_BYTES:,} bytes"
            self._bad(number, "session", quoted(name), f"has more than {limits}")
        before = known.messages[-1].said_at if known.messages else ""
        known.messages.append(self._message(number, "", record, before))
        return known

    def _message(self, number: int, at: str, record: Mapping[str, Any], before: str) -> SpokenMessage:
        """A checked message. Without a time of its own it gets `before`, the time of the message before it."""
        role, text, speaker = record.get("role"), record.get("content"), record.get("speaker")
        if not isinstance(role, str) or role not in get_args(SpokenRole):
            self._bad(number, f"{at}role", quoted(role), "expected user or assistant; leave other messages out")
        if not isinstance(text, str) or not text.strip():
            self._bad(number, f"{at}content", quoted(text), "expected a text that is not empty")
        most = self._config.limits.max_message_chars
        if len(text) > most or not fits_entry(text, self._config.ledger):
            self._bad(
                number, f"{at}content", "", f"has {len(text):,} characters: expected at most max_message_chars = {most:,}"
                f", and no more than fit into max_entry_bytes = {self._config.ledger.max_entry_bytes:,}"
            )  # fmt: skip
        if speaker is not None:
            try:
                check_speaker("speaker", speaker)
            except CallerError as error:
                self._bad(number, f"{at}speaker", "", str(error).partition(": ")[2] + f", not {quoted(speaker)}")
        return SpokenMessage(cast(SpokenRole, role), text, speaker, self._time(number, f"{at}time", record.get("time"), before))

    def _time(self, number: int, at: str, given: object, before: str) -> str:
        if given is None:
            return before
        try:
            time = datetime.fromisoformat(given) if isinstance(given, str) else None
            time = time and as_utc(time)
        except (ValueError, OverflowError):
            time = None
        if time is None:
            self._bad(number, at, quoted(given), "expected ISO time such as 2026-02-18T09:30:00Z; without a zone it is UTC")
        said_at = iso_of(to_us(time))
        if said_at > self._now:
            self._bad(number, at, quoted(given), f"lies in the future; it is {self._now} now")
        if said_at < before:
            self._bad(number, at, quoted(given), f"lies before the message before it, which has {before}")
        return said_at

    def _text(self, number: int, field: str, given: object, most: int) -> str | None:
        """A name or a title; None: there is none."""
        if given is None or is_printable(given, most):
            return given
        self._bad(number, field, quoted(given), f"expected 1 to {most} printable characters, or nothing")

    def _only(self, number: int, at: str, record: Mapping[str, object], fields: tuple[str, ...]) -> None:
        for key in record:
            if key not in fields:
                self._bad(number, f"{at}{described_name(key)}", "", f"expected only the fields {', '.join(fields)}")

    def _bad(self, number: int, field: str, value: str, expected: str) -> NoReturn:
        raise ConfigError(f"{self._path}:{number}", field, value, expected)


class _Open:
    """A conversation with one message a line, while it is being read."""

    def __init__(self, name: str | None) -> None:
        self.name, self.title, self.size = name, cast("str | None", None), 0
        self.messages: list[SpokenMessage] = []

    def conversation(self) -> SpokenConversation:
        return SpokenConversation(self.name, self.title, tuple(self.messages))
