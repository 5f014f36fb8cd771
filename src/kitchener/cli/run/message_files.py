"""Reads the messages of `kitchener run` and writes its results, without holding all of either in memory.

The input is read twice: once to check and index every line, and again when a message's turn comes. Results go to a temporary
file as they arrive, and are put into the order of the input at the end.
"""

import os
import shutil
import tempfile
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, NamedTuple

import orjson

from kitchener.cli.terminal.written_files import write_output
from kitchener.config.shown import described_name
from kitchener.errors import ConfigError
from kitchener.plain_names import shown_path
from kitchener.records.parts import FilePart

_FIELDS: Final = ("conversation", "subject_id", "message", "parts")
_NOT_YET: Final = -1
_NO_FILE: Final = """; `run` takes a file of messages. To send one message, type: echo "hello" | kitchener chat"""
"""A hint in the error about an argument that looks like a message."""


class FileMessage(NamedTuple):
    """One message of the input."""

    text: str
    parts: tuple[FilePart, ...] = ()
    """Its images and files; relative paths start at the directory of the input."""


@dataclass(slots=True)
class Conversation:
    """The messages of one conversation, by their numbers in the input."""

    name: str
    subject_id: str | None
    lines: "array[int]" = field(default_factory=lambda: array("q"))
    """Numbers of its messages within the whole input, from 0."""


class Messages:
    """The input file, checked and indexed.

    Args:
        path: a file of JSON lines, or a pipe; a pipe is copied first
        max_chars: longest message

    Raises:
        ConfigError: a line is wrong; names file, line and what was expected
    """

    def __init__(self, path: Path, *, max_chars: int) -> None:
        self._path, self._max_chars = path, max_chars
        self._file = _seekable(path)
        self._offsets = array("q")
        self.conversations: dict[str, Conversation] = {}
        """In the order of their first messages."""
        try:
            self._index()
        except BaseException:
            self._file.close()
            raise

    def __len__(self) -> int:
        return len(self._offsets)

    def close(self) -> None:
        self._file.close()

    def read(self, lines: "array[int]") -> list[FileMessage]:
        """The messages of these numbers. Safe to call from several threads at once."""
        found = []
        for line in lines:
            start = self._offsets[line]
            end = self._offsets[line + 1] if line + 1 < len(self) else self._end
            record = orjson.loads(os.pread(self._file.fileno(), end - start, start))
            parts = (FilePart(self._path.parent / each) for each in record.get("parts") or ())
            found.append(FileMessage(record["message"], tuple(parts)))
        return found

    def _index(self) -> None:
        offset = 0
        for number, line in enumerate(self._file, 1):
            if line.strip():
                name, subject_id = self._checked(line, number)
                known = self.conversations.setdefault(name, Conversation(name, subject_id))
                if known.subject_id != subject_id:
                    expected = f"subject_id {known.subject_id!r}, as in the first message of conversation {name!r}"
                    raise self._bad(number, f"{expected}, not {subject_id!r}")
                known.lines.append(len(self._offsets))
                self._offsets.append(offset)
            offset += len(line)
        self._end = offset

    def _checked(self, line: bytes, number: int) -> tuple[str, str | None]:
        """The conversation and the subject of a line, after checking the line."""
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise self._bad(number, f"one JSON object ({error})") from None
        if not isinstance(record, dict):
            raise self._bad(number, "one JSON object")
        for key in record:
            if key not in _FIELDS:
                raise self._bad(number, f"only the fields {', '.join(_FIELDS)}, not {described_name(key)}")
        name, subject_id, message, parts = (record.get(key) for key in _FIELDS)
        if not isinstance(name, str) or not name:
            raise self._bad(number, "`conversation`, a text that is not empty")
        if subject_id is not None and (not isinstance(subject_id, str) or not subject_id):
            raise self._bad(number, "`subject_id` to be a text that is not empty, or to be left out")
        if not isinstance(message, str) or not message.strip():
            raise self._bad(number, "`message`, a text that is not empty")
        if parts is not None and not (isinstance(parts, list) and all(isinstance(each, str) and each for each in parts)):
            raise self._bad(number, "`parts` to be a list of paths of images and files, or to be left out")
        if len(message) > self._max_chars:
            raise self._bad(number, f"a message of at most max_message_chars = {self._max_chars}, not {len(message)}")
        return name, subject_id

    def _bad(self, number: int, expected: str) -> ConfigError:
        return ConfigError(f"{self._path}:{number}", "", "", f"expected {expected}")


class Results:
    """The results of a run, stored as they arrive and put in order at the end.

    Args:
        path: the file to write at the end; temporary files go to the same directory
        count: how many results there will be

    Raises:
        ConfigError: the directory does not exist or cannot be written to
    """

    def __init__(self, path: Path, count: int) -> None:
        self._path = path
        try:
            self._spool: IO[bytes] = tempfile.TemporaryFile(dir=path.parent)  # noqa: SIM115  closed by `close`
        except OSError as error:
            raise ConfigError(str(path), "", "", f"cannot be written: {error.strerror or error}") from error
        self._starts = array("q", [_NOT_YET]) * count
        self._end = 0

    def add(self, line: int, record: Mapping[str, object]) -> None:
        """Keeps the result of the message of this number."""
        text = orjson.dumps(record) + b"\n"
        self._starts[line] = self._end
        self._end += self._spool.write(text)

    def write(self) -> None:
        """Writes the file, whole or not at all; only its owner can read it."""
        write_output(self._path, self._fill)

    def _fill(self, file: IO[bytes]) -> None:
        self._spool.flush()
        for start in self._starts:
            self._spool.seek(start)
            file.write(self._spool.readline())

    def close(self) -> None:
        """Closes and thereby removes the temporary file."""
        self._spool.close()


def _seekable(path: Path) -> IO[bytes]:
    try:
        file = path.open("rb")
    except OSError as error:
        hint = _NO_FILE if not path.suffix or " " in path.name else ""
        raise ConfigError(shown_path(str(path)), "", "", f"cannot be read: {error.strerror or error}{hint}") from error
    if file.seekable():
        return file
    with file:
        copy: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed by `Messages.close`
        shutil.copyfileobj(file, copy)
        copy.seek(0)
        return copy
