"""Asks the process that has a root open to carry out an operation there."""

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import anyio
import anyio.to_thread
from anyio.abc import SocketAttribute, UNIXSocketStream
from pydantic import ValidationError

from kitchener.config import RuntimeConfig
from kitchener.errors import AdminUnanswered, AdminUnavailable
from kitchener.runtime.admin import socket_place
from kitchener.runtime.admin.operation import Operation
from kitchener.runtime.admin.wire import (
    MAX_ANSWER_BYTES,
    MAX_REQUEST_BYTES,
    TRANSFER_S,
    AdminRequest,
    FrameTooLarge,
    decoded_answer,
    no_answer,
    read_frame,
)

R = TypeVar("R")
_PAUSE_S: Final = 0.02
"""Wait before the next try if the listener's queue is full, seconds."""


class NobodyListens(Exception):
    """No process listens for the commands of a root."""


async def ask(config: RuntimeConfig, operation: Operation[R]) -> R:
    """Runs an operation in the process that has the root open, and returns its result.

    Args:
        config: the whole configuration, with absolute paths; `[admin]` has the deadline
        operation: the operation

    Raises:
        NobodyListens: no process listens
        AdminUnavailable: the process cannot accept the request, or its socket is not safe; nothing was done
        AdminRefused: the operation failed there
        AdminUnanswered: no answer came in time; the change may have been made
    """
    limit_s = operation.deadline_s(config)
    path = await anyio.to_thread.run_sync(socket_place.find, Path(config.plane_root))
    if path is None:
        raise NobodyListens
    request = AdminRequest(operation.op, operation.model_dump(mode="json", exclude={"op"}), limit_s)
    data = await anyio.to_thread.run_sync(request.encoded)
    if len(data) > MAX_REQUEST_BYTES:
        raise AdminUnavailable(
            f"the request has {len(data):,} bytes, more than {MAX_REQUEST_BYTES:,}, and a running process has the root open;"
            " nothing was done. Do it in smaller parts, or stop that process first"
        )
    try:
        stream = await _connected(path)
    except (ConnectionRefusedError, FileNotFoundError) as error:
        raise NobodyListens from error
    except OSError as error:
        raise AdminUnavailable(f"{path}: {error.strerror or error}; nothing was done") from error
    is_sent = False
    try:
        async with stream:
            socket_place.check_peer(stream.extra(SocketAttribute.raw_socket), may_be=socket_place.owner_of(path))
            with anyio.fail_after(limit_s + 2 * TRANSFER_S):
                with suppress(anyio.BrokenResourceError):  # refused before all of it was read; the answer says why
                    await stream.send(data)
                is_sent = True
                body = await read_frame(stream, MAX_ANSWER_BYTES)
    except (TimeoutError, anyio.EndOfStream, anyio.BrokenResourceError, OSError, FrameTooLarge) as error:
        if not is_sent:
            raise AdminUnavailable(f"{path}: the connection broke before the request was sent; nothing was done") from error
        raise AdminUnanswered(
            f"the process that has the root open gave no answer to {operation.op}; the change may have been made. Look, and"
            " repeat it if needed"
        ) from error
    result = await anyio.to_thread.run_sync(decoded_answer, body)
    try:
        return operation.decoded(result)
    except ValidationError as error:
        raise no_answer("of another form") from error


async def _connected(path: Path) -> UNIXSocketStream:
    """Opens a connection. Does not use `anyio.connect_unix`: while the listener's queue is full, that function never returns,
    or returns a socket without a peer."""
    with anyio.move_on_after(TRANSFER_S):
        while True:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.setblocking(False)
                sock.connect(os.fsencode(path))
                return await UNIXSocketStream.from_socket(sock)
            except BlockingIOError:
                sock.close()
                await anyio.sleep(_PAUSE_S)
            except BaseException:
                sock.close()
                raise
    raise AdminUnavailable(
        f"the process that has the root open took no connection within {TRANSFER_S:g} s; nothing was done, try again"
    )
