"""Errors of the ledgers: what is stored does not verify, cannot be stored, or is not known to be stored."""

from typing import Final

from kitchener.errors.root import KitchenerError
from kitchener.plain_names import first_chars

THIS_PROCESS: Final = "this process"
"""The `holder` of a `LedgerLocked` if another runtime of the same process has the ledger."""


class LedgerError(KitchenerError):
    """Root of the ledger's errors."""


class LedgerDamaged(LedgerError):
    """Stored bytes do not verify. Nothing was changed.

    Attributes:
        path: the file
        line: 1-based line number of the first fault
        offset: byte offset of that line
        field: the part that is wrong (`entry_hash`, `seq`, `framing` …)
        expected, found: the values as text, shortened
    """

    def __init__(self, path: str, *, line: int, offset: int, field: str, expected: str, found: str) -> None:
        self.path: str = path
        self.line: int = line
        self.offset: int = offset
        self.field: str = field
        self.expected: str = expected
        self.found: str = found
        where = f"{path}: line {line} (byte {offset}): {field}"
        super().__init__(f"{where}: expected {expected}, found {found}; nothing was changed")


class LedgerTailMissing(LedgerDamaged):
    """The ledger ends before entries that were durable. It was cut off, or an old copy was restored."""


class PartDamaged(LedgerError):
    """The stored bytes of an image or a file are missing, were changed, or cannot be decrypted."""

    def __init__(self, path: str, content_hash: str, problem: str) -> None:
        self.path: str = path
        self.content_hash: str = content_hash
        self.problem: str = problem
        super().__init__(f"{path}: {problem} (content {first_chars(content_hash, 24)}); restore it from a backup")


class LedgerLocked(LedgerError):
    """Another writer holds the ledger. `holder` says which, `THIS_PROCESS` if it is another runtime of this process."""

    def __init__(self, path: str, holder: str) -> None:
        self.path: str = path
        self.holder: str = holder
        waiting = "stop it, let `open_runtime(lock_wait_s=…)` wait for it"
        remedy = "close the runtime that has it" if holder == THIS_PROCESS else waiting
        super().__init__(f"{path} is in use by {holder}; one runtime writes a ledger at a time: {remedy}, or use another root")


class LedgerPathError(LedgerError):
    """The path cannot hold a ledger."""

    def __init__(self, path: str, problem: str) -> None:
        self.path: str = path
        self.problem: str = problem
        super().__init__(f"{path}: {problem}")


class LedgerDiskError(LedgerPathError):
    """The disk cannot take the ledger or its index now: it is full, failing or read-only. The path is right: try later."""


class LedgerWriteError(LedgerError):
    """A write or fsync failed. Waiting entries may or may not be stored; the ledger takes no more entries."""

    def __init__(self, path: str, problem: str) -> None:
        self.path: str = path
        self.problem: str = problem
        super().__init__(f"{path}: cannot write: {problem}; the ledger takes no more entries until it is opened again")


class CommitUnknown(LedgerError):
    """The turn is complete, but the disk did not answer in time. The turn's record may or may not be durable."""

    def __init__(self, turn_id: str) -> None:
        self.turn_id = turn_id
        problem = "its record was not durable in time"
        super().__init__(f"turn {turn_id} is complete, but {problem}; send it again with the same idempotency key")


class LedgerClosed(LedgerError):
    """The ledger was used after it was closed."""


class LedgerClockError(LedgerError):
    """The clock jumped ahead, or the ledger's last entry lies in the future."""


class EntryRefused(LedgerError):
    """A value has no canonical form, so it cannot enter a ledger. `path` leads to the wrong part: `payload.arguments[2]`."""

    def __init__(self, path: str, problem: str) -> None:
        self.path: str = path
        self.problem: str = problem
        super().__init__(f"{path or 'value'}: {problem}")


class EntryTooLarge(LedgerError):
    """The entry is larger than `max_entry_bytes`; nothing was written."""

    def __init__(self, ledger_id: str, entry_type: str, size: int, limit: int) -> None:
        self.ledger_id: str = ledger_id
        self.entry_type: str = entry_type
        self.size: int = size
        self.limit: int = limit
        super().__init__(f"{ledger_id}: {entry_type} of {size} bytes exceeds max_entry_bytes = {limit}; not written")


class EventVersionError(LedgerError):
    """An entry was written by a newer version of Kitchener than this one."""


class StaleHead(LedgerError):
    """The session's last entry is not the one that the writer expected, because another writer added entries."""

    def __init__(self, ledger_id: str, session_id: str, expected: str, found: str) -> None:
        self.ledger_id: str = ledger_id
        self.session_id: str = session_id
        self.expected: str = expected
        self.found: str = found
        super().__init__(f"{ledger_id}: session {session_id}: expected last entry {expected}, found {found}")
