"""What a user sees of the settings of `[admin]`: whether somebody listens, who is refused, and who is cut off."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import ByteStream

from kitchener.errors import KitchenerError
from kitchener.runtime.admin.admin_client import NobodyListens, ask
from kitchener.runtime.admin.operations import EndSession, ReadStatistics
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import echo
from tests.config.observed_turns import Gate, pass_time, until
from tests.runtime.admin.listening import framed, listening, listening_config, request, socket_of


async def asked(root: Path, operation: Any) -> str:
    """What a request came to, for a client with bounds of its own."""
    try:
        await ask(listening_config(root, {"deadline_s": 1_000.0}), operation)
    except (KitchenerError, NobodyListens) as error:
        return type(error).__name__
    return "answered"


async def listens(root: Path, **admin: Any) -> Hashable:
    """A runtime whose program says nothing about a socket."""
    async with listening(root, admin=admin):
        return await asked(root, ReadStatistics())


async def long_request(root: Path, **admin: Any) -> Hashable:
    """A request of some two thousand bytes, for a session that does not exist."""
    async with listening(root, admin=admin):
        return await asked(root, EndSession(agent_class="ADMIN", session_id="x" * 2_000))


async def second_client(root: Path, **admin: Any) -> Hashable:
    """A request while another client is connected."""
    async with listening(root, admin=admin), await anyio.connect_unix(socket_of(root)) as first:
        await first.send(b"\0")
        return await asked(root, ReadStatistics())


async def silent_client(root: Path, **admin: Any) -> Hashable:
    """A client that sends nothing for a while."""
    async with listening(root, admin=admin), await anyio.connect_unix(socket_of(root)) as silent:
        await silent.send(b"\0")
        assert await asked(root, ReadStatistics()) == "answered"
        await pass_time()
        return await asked_again(silent)


async def asked_again(stream: ByteStream) -> str:
    """Whether a connection that was silent still takes a request."""
    try:
        await stream.send(framed(request())[1:])
        await stream.receive()
    except (anyio.BrokenResourceError, anyio.EndOfStream):
        return "cut off"
    return "answered"


async def slow_operation(root: Path, **admin: Any) -> Hashable:
    """The end of a session whose turn takes a while."""
    gate, ends = Gate(), list[str]()
    async with listening(root, ScriptedProvider(echo, gate=gate), admin=admin) as runtime, anyio.create_task_group() as tasks:
        supervisor = runtime.supervisor()
        session_id = await supervisor.start_session()

        async def end() -> None:
            ends.append(await asked(root, EndSession(agent_class="ADMIN", session_id=session_id)))

        tasks.start_soon(lambda: supervisor.handle_turn("hello", session_id=session_id))
        await until(lambda: gate.arrived == 1)
        queue = (await supervisor.session(session_id)).queue
        assert queue is not None
        tasks.start_soon(end)
        await until(lambda: bool(queue.waiting))
        await pass_time()
        gate.opened.set()
        await until(lambda: bool(ends))
    return ends[0]
