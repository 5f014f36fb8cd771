"""What a user sees of the settings of `[admin]`: whether somebody listens, who is refused, and who is cut off."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import anyio

from kitchener.errors import KitchenerError
from kitchener.runtime.admin.admin_client import NobodyListens, ask
from kitchener.runtime.admin.operations import EndSession, ReadStatistics
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import echo
from tests.config.observed_turns import Gate, pass_time, until
from tests.runtime.admin.admin_kit import listening, listening_config


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
