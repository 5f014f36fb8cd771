"""Runs the model's server beside a block, on loopback, and ends it however the block ends."""

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from benchmarks.real.install import Installed, InstallError

READY_S = 120
"""Longest time until the model is loaded, seconds."""


@asynccontextmanager
async def serving(installed: Installed) -> AsyncIterator[str]:
    """Yields the `base_url`. The server also ends if this process is killed, because its standard input ends.

    Raises:
        InstallError: the server did not start
    """
    command = ["node", str(installed.server), str(installed.model)]
    async with await anyio.open_process(command, stdin=subprocess.PIPE, stderr=None) as process:
        try:
            assert process.stdout is not None
            try:
                with anyio.fail_after(READY_S):
                    port = await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 16)
            except (anyio.IncompleteRead, TimeoutError):
                told = f"the server did not start; remove {str(installed.server.parent)!r} and run `make real` again"
                raise InstallError(told) from None
            yield f"http://127.0.0.1:{int(port)}/v1"
        finally:
            if process.returncode is None:
                process.terminate()
