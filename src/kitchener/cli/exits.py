"""Exit codes of the command line, as `docs/commands.md` lists them."""

from typing import Final

OK: Final = 0
NEGATIVE: Final = 1
"""The command ran, and its answer is negative: e.g. a result has an error, or nothing on record has that name."""
USAGE: Final = 2
"""The command line, the input or the settings are wrong; nothing was started."""
BLOCKED: Final = 3
"""Several intents compete, so nothing can be shown before one is chosen."""
INVALID: Final = 4
"""An intent or a work order has, or would get, an invalid life cycle."""
DIVERGED: Final = 5
"""A replay differs from the record."""
DAMAGED: Final = 6
"""A ledger does not verify."""
LOCKED: Final = 7
"""Another process writes the ledger, and does not accept the request."""
INTERRUPTED: Final = 130
"""SIGINT, SIGTERM or SIGHUP ended the command before it was done."""


class CommandFailed(Exception):
    """Ends a command that has no answer to print.

    Args:
        code: the exit code
        kind: the `kind` of the error object that `--json` prints: the name of a class of errors, or a word in lower case
        message: what happened, for a person
    """

    def __init__(self, code: int, kind: str, message: str) -> None:
        self.code, self.kind = code, kind
        super().__init__(message)
