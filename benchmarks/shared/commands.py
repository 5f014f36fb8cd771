"""Commands that end with the one who runs them."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio


async def run_command(
    command: Sequence[str],
    *,
    given: bytes | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Runs a command to its end, or kills it when the caller is cancelled. Its exit code is the caller's concern.

    On Ctrl-C asyncio cancels a task once, and `anyio.run_process` answers by waiting for the process. A task of a group is
    cancelled until it ends, which kills the process.

    Args:
        command: the program and its arguments
        given: its standard input; None: that of this process
        env: all its environment variables; None: those of this process
        cwd: its working directory; None: that of this process
    """
    ended: list[subprocess.CompletedProcess[bytes]] = []

    async def run() -> None:
        ended.append(await anyio.run_process(command, input=given, check=False, env=env, cwd=cwd))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
    return ended[0]
