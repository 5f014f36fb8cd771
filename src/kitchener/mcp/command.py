"""Runs a server as a command and carries its messages: one line of JSON each, up to a longest line.

A longer line is read to its end and dropped, and the call that it answers becomes an error. The vendor's transport would hold a
line of any length, and copy the whole line with each part that comes. `connection.py` uses this one. Explained in
`docs/mcp.md`.
"""

import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from subprocess import PIPE
from typing import Final, Protocol, TextIO, TypeVar

import anyio
import orjson
from anyio.abc import ObjectReceiveStream, ObjectSendStream, Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from pydantic import BaseModel

from kitchener.mcp.message_values import MAX_VALUES, holds_too_many, may_hold_too_many
from kitchener.mcp.protocol_errors import TOO_LARGE, UNREADABLE

GRACE_S: Final = 2.0
"""How long a command may take to end after its input was closed, and again after SIGTERM, seconds."""
_POLL_S: Final = 0.01
_ENDS: Final = 64
"""Bytes of the beginning and of the end of a dropped line that are kept: the id of the call stands there."""
_STRAY_CHARS: Final = 200
"""Most characters of a line that is no message which are kept."""
_CALL_ID: Final = re.compile(rb'"id"\s{0,4}:\s{0,4}(\d{1,18})')
_GONE: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


class WireMessage(Protocol):
    """A message, as the vendor's library passes it on."""

    @property
    def message(self) -> BaseModel:
        """What it says on the wire."""


WireMessageT = TypeVar("WireMessageT", bound=WireMessage)


@asynccontextmanager
async def open_command(
    read: Callable[[bytes], WireMessageT],
    command: Sequence[str],
    *,
    unreadable: int,
    cwd: str | None,
    env: Mapping[str, str],
    errors: TextIO,
    limit: int,
) -> AsyncIterator[tuple[MemoryObjectReceiveStream[WireMessageT | Exception], MemoryObjectSendStream[WireMessageT]]]:
    """Starts a command, and ends it with the block, with all that it has started.

    Args:
        read: reads a message from its JSON; raises ValueError for what is none
        command: the program and its arguments
        unreadable: the code of the protocol for an answer that cannot be read
        cwd: its working directory; None: that of this process
        env: all its environment variables
        errors: where its standard error goes
        limit: longest line of its output, bytes

    Raises:
        OSError: it cannot be started
    """
    with anyio.CancelScope(shield=True):  # asyncio leaves a process and its pipes open if it is cancelled as they are opened
        process = await anyio.open_process(
            command, stdin=PIPE, stdout=PIPE, stderr=errors, cwd=cwd, env=env, start_new_session=True
        )
    told, incoming = anyio.create_memory_object_stream[WireMessageT | Exception](0)
    outgoing, given = anyio.create_memory_object_stream[WireMessageT](0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read, process, told, lambda line: _message(read, line, unreadable, limit), limit)
        tasks.start_soon(_write, process, given, told)
        try:
            yield incoming, outgoing
        finally:
            with anyio.CancelScope(shield=True):  # bounded, see GRACE_S
                incoming.close()
                outgoing.close()
                await _end(process)
            tasks.cancel_scope.cancel()


async def _read(
    process: Process,
    told: ObjectSendStream[WireMessageT | Exception],
    message_of: Callable[["bytes | LongLine"], WireMessageT | Exception],
    limit: int,
) -> None:
    """Passes on what the command says, then reads on so that it is never stuck, until its output ends."""
    assert process.stdout is not None
    lines = LineReader(limit)
    with suppress(*_GONE):
        async with told:
            async for chunk in process.stdout:
                for line in lines.add(chunk):
                    await told.send(message_of(line))
    with suppress(*_GONE):
        async for _ in process.stdout:
            pass


def _message(
    read: Callable[[bytes], WireMessageT], line: "bytes | LongLine", unreadable: int, limit: int
) -> WireMessageT | ValueError:
    """A message, or an error in its place, which the session passes over. What answers a call becomes a message in any case."""
    if isinstance(line, LongLine):
        found = _CALL_ID.search(line.beginning) or _CALL_ID.search(line.end)
        call_id, problem = int(found[1]) if found is not None else None, f"{TOO_LARGE} {limit:,} bytes"
    elif may_hold_too_many(line) and holds_too_many(_json(line)):
        call_id, problem = _answered_call(_json(line)), f"{TOO_LARGE} {MAX_VALUES:,} values"
    else:
        try:
            return read(line)
        except ValueError:
            call_id, problem = _answered_call(_json(line)), UNREADABLE
    if call_id is None:
        return StrayLine(line)
    return read(orjson.dumps({"jsonrpc": "2.0", "id": call_id, "error": {"code": unreadable, "message": problem}}))


def _json(line: bytes) -> object:
    """The value of a line; None: it is no JSON."""
    try:
        return orjson.loads(line)
    except ValueError:
        return None


def _answered_call(message: object) -> int | None:
    """The id of the call that a message answers, whatever else is wrong with it; None: it answers none."""
    if not isinstance(message, dict) or "method" in message or type(call_id := message.get("id")) is not int:
        return None
    return call_id


async def _write(
    process: Process, given: ObjectReceiveStream[WireMessageT], told: ObjectSendStream[WireMessageT | Exception]
) -> None:
    """Passes input to the command. A command that no longer reads its input is lost, even if its process runs."""
    assert process.stdin is not None
    try:
        async with given:
            async for each in given:
                await process.stdin.send(each.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
    except _GONE:
        await told.aclose()


async def _end(process: Process) -> None:
    assert process.stdin is not None
    with suppress(*_GONE):
        await process.stdin.aclose()
    if not await _has_ended(process):
        _signal(process, signal.SIGTERM)
        await _has_ended(process)
    _signal(process, signal.SIGKILL)  # also what it has left behind
    await _has_ended(process)
    with suppress(*_GONE), anyio.move_on_after(GRACE_S):
        await process.aclose()


async def _has_ended(process: Process) -> bool:
    """Whether the command ends within `GRACE_S`. It is looked at, because `wait` also waits for heirs of its output."""
    with anyio.move_on_after(GRACE_S):
        while process.returncode is None:  # noqa: ASYNC110
            await anyio.sleep(_POLL_S)
    return process.returncode is not None


def _signal(process: Process, number: signal.Signals) -> None:
    """Sends a signal to the command and to all that it has started in its own session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


class StrayLine(ValueError):
    """A line of a command's output that is no message.

    Attributes:
        text: its first characters
    """

    def __init__(self, line: "bytes | LongLine") -> None:
        beginning = line.beginning if isinstance(line, LongLine) else line
        self.text = beginning[:_STRAY_CHARS].decode("utf-8", "replace").strip()
        super().__init__("a line of its output is no message")


class LongLine:
    """What is kept of a line that is too long."""

    __slots__ = ("beginning", "end")

    def __init__(self, beginning: bytes) -> None:
        self.beginning, self.end = beginning[:_ENDS], b""

    def add(self, part: bytes) -> None:
        """Takes the next part of the line."""
        self.end = (self.end + part[-_ENDS:])[-_ENDS:]


class LineReader:
    """Splits a stream of bytes into lines, and looks at each byte once.

    Args:
        limit: longest line, bytes
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._size = limit, 0
        self._parts: list[bytes] = []
        self._long: LongLine | None = None

    def add(self, chunk: bytes) -> Iterator[bytes | LongLine]:
        """Takes the next part of the stream, and yields the lines that it ends."""
        *whole, rest = chunk.split(b"\n")
        for each in whole:
            self._take(each)
            yield self._long or b"".join(self._parts)
            self._parts, self._size, self._long = [], 0, None
        self._take(rest)

    def _take(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= self._limit:
            self._parts.append(part)
            return
        if self._long is None:
            self._long, self._parts = LongLine(b"".join((*self._parts, part[:_ENDS]))), []
        self._long.add(part)


__all__ = ["TOO_LARGE", "LineReader", "LongLine", "WireMessage", "open_command"]
