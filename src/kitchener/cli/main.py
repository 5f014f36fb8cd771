"""Starts the `kitchener` command. From here on, Ctrl-C ends it with one line, even while modules are still being imported.

`app.py` runs the command line. Explained in `docs/commands.md`.
"""

import gc
import os
import signal
import sys
from types import FrameType

from kitchener.cli.exits import INTERRUPTED


def main() -> None:
    """Entry point of the `kitchener` script."""
    # A shell's background job is started with Ctrl-C ignored, and stays so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    # Until the command's modules are imported too, see `invoke`: the collector took a tenth of the CPU time of a start.
    gc.disable()
    # Imported here because it takes half a second, in which one may think better of it.
    from kitchener.cli.app import run

    run(sys.argv[1:])


def _leave(number: int, frame: FrameType | None) -> None:
    # For as long as nothing is open that has to be closed (`interrupt.py`). Not by an exception: one that is raised inside an
    # import may be printed and forgotten there.
    os.write(2, b"kitchener: interrupted\n")
    os._exit(INTERRUPTED)
