"""Starts the `kitchener` command. From here on, a signal ends it with one line, even while modules are still being imported.

`app.py` runs the command line. Explained in `docs/commands.md`.
"""

import gc
import os
import signal
import sys
from contextlib import suppress
from types import FrameType

from kitchener.cli.exits import INTERRUPTED


def main() -> None:
    """Entry point of the `kitchener` script."""
    _open_standard_streams()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A shell starts a background job with Ctrl-C ignored, and `nohup` a command with SIGHUP ignored; they stay ignored.
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
            signal.signal(number, _leave)
    # Off until the command's modules are imported, see `app.py`. With the collector, `kitchener config schema` executes 13 %
    # more instructions (`valgrind --tool=cachegrind`).
    gc.disable()
    # Imported here because the import takes half a second, and a signal must end the command during it.
    from kitchener.cli.app import run

    run(sys.argv[1:])


def _open_standard_streams() -> None:
    """Opens the null device for each standard stream that is closed.

    A new file gets the lowest free descriptor. A ledger would become standard output, and what a library prints would go
    into it.
    """
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", closefd=False))


def _leave(number: int, frame: FrameType | None) -> None:
    # Used while nothing is open that has to be closed (`terminal/stop_signals.py`). Raises no exception, because an exception
    # inside an import may be printed and dropped there.
    with suppress(OSError):  # after SIGHUP, the terminal is closed
        os.write(2, b"kitchener: interrupted\n")
    os._exit(INTERRUPTED)
