"""Exit codes of the command line, as `docs/commands.md` lists them."""

from typing import Final

OK: Final = 0
NEGATIVE: Final = 1
"""The command did its work, and the answer is no: a result has an error, nothing of that name is on record."""
USAGE: Final = 2
"""The command line, the input or the settings are wrong; nothing was started."""
BLOCKED: Final = 3
"""Several intents compete, so nothing can be shown before one is chosen."""
INVALID: Final = 4
"""An intent or a work order has an impossible life, on record or as it was asked for."""
DIVERGED: Final = 5
"""A replay came out otherwise than it was recorded."""
DAMAGED: Final = 6
"""A ledger does not verify."""
LOCKED: Final = 7
"""Another process writes the ledger, and does not take the request."""
INTERRUPTED: Final = 130
"""SIGINT or SIGTERM ended the command before it was done."""
