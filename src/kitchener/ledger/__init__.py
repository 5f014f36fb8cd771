"""Append-only, hash-chained ledgers: the source of truth. Knows bytes and hashes, no meaning. Explained in `docs/ledger.md`."""

from kitchener.ledger.chain import LedgerEntry, StoredEntry, compute_trace_hash
from kitchener.ledger.checkpoint import Checkpoint
from kitchener.ledger.client import LedgerClient
from kitchener.ledger.ledgers import Ledgers, open_ledgers
from kitchener.ledger.parallel import verify_ledger
from kitchener.ledger.reader import LedgerReader
from kitchener.ledger.verifying import VerifyReport, verify_file

__all__ = [
    "Checkpoint",
    "LedgerClient",
    "LedgerEntry",
    "LedgerReader",
    "Ledgers",
    "StoredEntry",
    "VerifyReport",
    "compute_trace_hash",
    "open_ledgers",
    "verify_file",
    "verify_ledger",
]
