"""A tool that stops a turn in the middle until the test lets it go on.

The tool is a module beside the settings file, so a command in another process finds it. It reports through one named pipe
that a turn has reached it and waits at another; with both gone it passes at once.
"""

import os
import select
from pathlib import Path

from tests.cli.shared.command_server import Started

_TOOL = '''
from pathlib import Path

from kitchener import tool


@tool(read_only=True)
def open_gate() -> str:
    """Open the gate."""
    here = Path(__file__).parent
    if (here / "reached").exists():
        (here / "reached").write_text("x")
        (here / "passing").read_text()
    return "open"
'''

_PATIENCE_S = 40
"""Longest wait for a process to come to the gate, seconds; only reached where something is broken."""

ASK = "open the gate"
"""A message for which the offline model runs the tool."""


class Gate:
    """The gate of the agents configured in one directory. Opening a pipe waits for the other side, so no time is guessed."""

    def __init__(self, directory: Path, *, shutdown_grace_s: float = 0.1) -> None:
        self._reached, self._passing = directory / "reached", directory / "passing"
        (directory / "gate_tool.py").write_text(_TOOL, encoding="utf-8")
        settings = '[agents.ADMIN]\ntools = ["gate_tool:open_gate"]\ntool_timeout_s = 60.0\n'
        settings += f"[limits]\nshutdown_grace_s = {shutdown_grace_s}\n"
        (directory / "kitchener.toml").write_text(settings, encoding="utf-8")
        os.mkfifo(self._reached)
        os.mkfifo(self._passing)

    def wait_until_reached(self, process: Started) -> None:
        """Returns when a turn of the process stands before the gate; fails where the process ends without coming there."""
        pipe, end = os.open(self._reached, os.O_RDONLY | os.O_NONBLOCK), os.pidfd_open(process.pid)
        try:
            ready, _, _ = select.select([pipe, end], [], [], _PATIENCE_S)
            assert pipe in ready, "the process never came to the gate"
            os.read(pipe, 1)
        finally:
            os.close(pipe)
            os.close(end)

    def let_pass(self) -> None:
        """Lets the turn go on."""
        self._passing.write_text("x")

    def remove(self) -> None:
        """From now on nothing waits. Not while something does."""
        self._reached.unlink()
        self._passing.unlink()
