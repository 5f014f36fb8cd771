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
    # A shell starts a background job with Ctrl-C ignored; it stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    # Off until the command's modules are imported, see `invoke`: the collector took a tenth of the CPU time of a start.
    gc.disable()
    # Imported here because the import takes half a second, and Ctrl-C must work during it.
    from kitchener.cli.app import run

    run(sys.argv[1:])


def _leave(number: int, frame: FrameType | None) -> None:
    # Used while nothing is open that has to be closed (`interrupt.py`). Raises no exception, because an exception inside an
    # import may be printed and dropped there.
    os.write(2, b"kitchener: interrupted\n")
    os._exit(INTERRUPTED)
