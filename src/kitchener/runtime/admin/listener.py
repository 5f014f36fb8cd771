"""Serves the administration socket of a runtime: reads one request of each connection, carries it out, and answers.

`operations.py` defines what a request does. Requests that change something run one at a time, except for turns. A request that
was read completely runs to its end, even if its client is gone. Explained in `docs/runtime.md`.
"""

import errno
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread
from anyio.abc import SocketAttribute, SocketListener, SocketStream, TaskGroup, TaskStatus

from kitchener.cancellation import start_apart
from kitchener.config import AdminConfig
from kitchener.errors import AdminUnanswered, AdminUnavailable, KitchenerError
from kitchener.lanes.thread_calls import opened_in_thread
from kitchener.logs import get_logger
from kitchener.runtime.admin import socket_place
from kitchener.runtime.admin.operation import AdminRoot, Operation
from kitchener.runtime.admin.operations import parse_operation
from kitchener.runtime.admin.wire import (
    MAX_REQUEST_BYTES,
    TRANSFER_S,
    AdminRequest,
    FrameTooLarge,
    answer,
    encoded_refusal,
    parse_request,
    read_frame,
)

_log = get_logger(__name__)
_MAX_CONNECTIONS: Final = 8
"""Connections at the same time: one person types the commands. A further one is refused, and nothing is done."""
_PAUSE_S: Final = 0.5
"""Wait after the system could not open another connection, seconds."""
_GONE: Final = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


class AdminListener:
    """Listens for the commands of one root, and closes with its runtime.

    Args:
        root: the root that the requests change
        config: deadlines
        grace_s: how long `close` waits for running requests, seconds
    """

    def __init__(self, root: AdminRoot, config: AdminConfig, *, grace_s: float) -> None:
        self._root, self._config, self._grace_s = root, config, grace_s
        self._connections = 0
        self._changing = anyio.Lock()
        self._accepting, self._serving = anyio.CancelScope(), anyio.CancelScope()
        self._ended = anyio.Event()
        self._claimed: socket_place.Claim | None = None

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Listens until `close`. If there can be no socket, logs why and returns, because turns need none."""
        try:
            await self._listen(task_status)
        except (AdminUnavailable, OSError) as error:
            if self._claimed is not None:
                raise
            _log.warning("no administration socket", problem=str(error))
            task_status.started()
        finally:
            self.abandon()  # not in a thread: these few calls must happen although this task is cancelled
            self._ended.set()

    async def _listen(self, task_status: TaskStatus[None]) -> None:
        claim = partial(socket_place.claim, self._root.directory)
        self._claimed = claimed = await opened_in_thread(claim, self._release)
        listener = await SocketListener.from_socket(claimed.sock)
        with self._serving:
            async with anyio.create_task_group() as tasks:
                with self._accepting:
                    async with listener:
                        task_status.started()
                        await self._accept(listener, tasks)

    async def close(self) -> None:
        """Stops accepting connections, lets running requests end within the grace period, and removes the socket."""
        self._accepting.cancel()
        with anyio.move_on_after(self._grace_s):
            await self._ended.wait()
        self._serving.cancel()
        await self._ended.wait()

    def abandon(self) -> None:
        """Removes the socket, which is no longer listened on. Blocks for a few calls of the system."""
        claimed, self._claimed = self._claimed, None
        if claimed is not None:
            self._release(claimed)

    def _release(self, claimed: socket_place.Claim) -> None:
        claimed.sock.close()
        socket_place.release(self._root.directory, claimed)

    async def _accept(self, listener: SocketListener, tasks: TaskGroup) -> None:
        """Serves connections until the socket fails."""
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED):
                    _log.error("administration socket given up", problem=error.strerror)  # turns need none
                    return
                _log.warning("no further administration connection", problem=error.strerror)
                await anyio.sleep(_PAUSE_S)
            else:
                self._connections += 1
                serve = partial(self._serve, stream, self._connections <= _MAX_CONNECTIONS)
                start_apart(tasks, serve, "administration connection")

    async def _serve(self, stream: SocketStream, has_room: bool) -> None:
        """Handles or refuses one connection. Raises nothing, so that no client can end the runtime."""
        try:
            async with stream:
                given = await self._answer_to(stream, has_room=has_room)
                if given is not None:
                    with anyio.move_on_after(TRANSFER_S):
                        await stream.send(given)
        except _GONE:
            _log.info("administration client gone")
        finally:
            self._connections -= 1

    async def _answer_to(self, stream: SocketStream, *, has_room: bool) -> bytes | None:
        """The answer's frame; None: the client sent no request in time."""
        try:
            socket_place.check_peer(stream.extra(SocketAttribute.raw_socket), may_be=-1)
            if not has_room:
                text = f"{_MAX_CONNECTIONS} administration connections are open"
                raise AdminUnavailable(f"{text}; nothing was done, try again")
            request = None
            with anyio.move_on_after(TRANSFER_S):
                body = await read_frame(stream, MAX_REQUEST_BYTES)
                request = await anyio.to_thread.run_sync(parse_request, body)
            if request is None:
                _log.warning("administration client too slow", limit_s=TRANSFER_S)
                return None
            return answer(await self._carry_out(request))
        except FrameTooLarge as error:
            text = f"the request has {error}, more than {MAX_REQUEST_BYTES:,}; nothing was done"
            return encoded_refusal(AdminUnavailable.__name__, text)
        except KitchenerError as error:
            return encoded_refusal(type(error).__name__, str(error))
        except _GONE:
            raise
        except OSError as error:  # an error of the operation; errors of the connection are handled above
            return encoded_refusal(KitchenerError.__name__, str(error))
        except Exception:  # noqa: BLE001  a bug in one request must not end the turns of everybody
            _log.exception("administration request failed")
            return encoded_refusal(
                KitchenerError.__name__, "the request failed inside the running process; its log has the traceback"
            )

    async def _carry_out(self, request: AdminRequest) -> object:
        """Runs the operation and returns its result as JSON types.

        Raises:
            KitchenerError: the operation failed
            AdminUnanswered: it took too long and was cancelled
        """
        operation = parse_operation(request.op, request.args)
        # A turn has its own deadlines. If it were cut off in the middle of a call, the outcome would be unknown.
        limit = request.deadline_s if operation.is_turn else min(request.deadline_s, self._config.deadline_s)
        with anyio.move_on_after(limit):
            if operation.is_read_only or operation.is_turn:
                return await self._run(operation)
            async with self._changing:
                result = await self._run(operation)
                _log.info("administration request carried out", op=request.op)
                return result
        raise AdminUnanswered(
            f"{request.op} took longer than {limit:g} s in the running process and was cancelled there; part of it may be done."
            " Look, and repeat it if needed"
        )

    async def _run(self, operation: Operation[Any]) -> object:
        return operation.encoded(await operation.run(self._root))
