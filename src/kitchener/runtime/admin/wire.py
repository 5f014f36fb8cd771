"""Turns requests and answers of the administration socket into bytes and back: a length of 4 bytes, then a JSON object.

A connection carries one request and one answer. This module does not know what a request asks for.
"""

import struct
from dataclasses import dataclass
from typing import Final

import orjson
from anyio.abc import ByteReceiveStream

from kitchener.errors import AdminRefused, AdminUnanswered, AdminUnavailable

VERSION: Final = 1
"""The version of the protocol. Both sides must have the same one."""
MAX_REQUEST_BYTES: Final = 4 * 1_048_576
"""Largest request, bytes: the lines of an import are sent as one. A larger one is refused, and nothing is done."""
MAX_ANSWER_BYTES: Final = 64 * 1_048_576
"""Largest answer that a client reads, bytes."""
TRANSFER_S: Final = 5.0
"""Longest time to connect, to send a request, or to take an answer, seconds. Both sides are on one machine."""
_LENGTH: Final = struct.Struct(">I")
_MAX_NAME: Final = 200
_OWN_ERRORS: Final = {each.__name__: each for each in (AdminUnavailable, AdminUnanswered)}


class FrameTooLarge(Exception):
    """A frame is longer than the limit. Nothing of its body was read."""

    def __init__(self, size: int) -> None:
        super().__init__(f"{size:,} bytes")
        self.size = size


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """What a command asks of the process that has the root open."""

    op: str
    """Name of the operation."""
    args: dict[str, object]
    """The operation's arguments, as JSON types; the operation checks them."""
    deadline_s: float
    """How long the client waits for the operation, seconds."""

    def encoded(self) -> bytes:
        """The request's frame. Raises AdminUnavailable if a path is not Unicode text, which JSON cannot contain."""
        try:
            return frame({"v": VERSION, "op": self.op, "args": self.args, "deadline_s": self.deadline_s})
        except TypeError as error:
            raise AdminUnavailable(
                f"{self.op}: a path is not Unicode text, and a running process has the root open; nothing was done. Rename it"
            ) from error


def frame(message: dict[str, object]) -> bytes:
    """The bytes of a message, with their length before them."""
    body = orjson.dumps(message)
    return _LENGTH.pack(len(body)) + body


async def read_frame(stream: ByteReceiveStream, max_bytes: int) -> bytes:
    """The body of the next frame.

    Raises:
        FrameTooLarge: the frame is longer than `max_bytes`
        anyio.EndOfStream, anyio.BrokenResourceError: the peer closed the connection before the frame was complete
    """
    (size,) = _LENGTH.unpack(await _exactly(stream, _LENGTH.size))
    if size > max_bytes:
        raise FrameTooLarge(size)
    return await _exactly(stream, size)


async def _exactly(stream: ByteReceiveStream, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        found += await stream.receive(min(65_536, size - len(found)))
    return bytes(found)


def parse_request(body: bytes) -> AdminRequest:
    """The request in a frame's body.

    Raises:
        AdminUnavailable: the request has another version, or is malformed
    """
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise AdminUnavailable("the request is not JSON; nothing was done") from error
    version = message.get("v") if isinstance(message, dict) else None
    if not isinstance(message, dict) or version != VERSION:
        raise _other_version(version)
    op, args, deadline_s = message.get("op"), message.get("args"), message.get("deadline_s")
    if not isinstance(op, str) or not isinstance(args, dict) or not isinstance(deadline_s, int | float) or not deadline_s > 0:
        raise AdminUnavailable("the request has no op, args or deadline_s of the right type; nothing was done")
    return AdminRequest(op[:_MAX_NAME], args, float(deadline_s))


def answer(result: object) -> bytes:
    """The frame of an answer with the result of an operation, as JSON types."""
    return frame({"v": VERSION, "result": result})


def encoded_refusal(kind: str, message: str) -> bytes:
    """The frame of an answer that says why a request failed.

    Args:
        kind: name of the error's class
        message: the error's text; may contain a file name that is not Unicode
    """
    text = message.encode(errors="replace").decode()
    return frame({"v": VERSION, "error": {"kind": kind, "message": text}})


def decoded_answer(body: bytes) -> object:
    """The result of an operation in an answer, as JSON types.

    Raises:
        AdminRefused: the request failed in the other process, or was refused there
        AdminUnavailable: the other process did not accept the request
        AdminUnanswered: the operation took too long there, or the answer is malformed, so its effect is unknown
    """
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise no_answer("that is not JSON") from error
    failed = (
        message.get("error") if isinstance(message, dict) else None
    )  # at the same position in all versions, so that an older process can name its version
    if isinstance(failed, dict):
        kind, text = str(failed.get("kind")), str(failed.get("message"))
        raise _OWN_ERRORS[kind](text) if kind in _OWN_ERRORS else AdminRefused(kind, text)
    if not isinstance(message, dict) or message.get("v") != VERSION or "result" not in message:
        raise no_answer("of another form")
    return message["result"]


def no_answer(what: str) -> AdminUnanswered:
    """The error for an answer that cannot be read."""
    return AdminUnanswered(
        f"the process that has the root open gave an answer {what}; the change may have been made. Look, and repeat it if"
        " needed"
    )


def _other_version(found: object) -> AdminUnavailable:
    said = f"version {found}" if isinstance(found, int) else "no version that is known here"
    return AdminUnavailable(
        f"the administration protocol has version {VERSION} here, and the other side speaks {said}; nothing was done. Use the"
        " `kitchener` that the running process uses, or stop that process first"
    )
