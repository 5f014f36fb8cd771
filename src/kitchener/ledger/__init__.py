"""Append-only, hash-chained ledgers: the source of truth. Knows bytes and hashes, not their meaning.

Explained in `docs/ledger.md`.
"""

from kitchener.ledger.client import LedgerClient
from kitchener.ledger.format.lines import LedgerEntry, StoredEntry, compute_trace_hash
from kitchener.ledger.ledgers import LateLedgers, Ledgers, open_ledgers
from kitchener.ledger.protocols import Ledger, LedgerGroup, ReadableLedger
from kitchener.ledger.reader import LedgerReader
from kitchener.ledger.verify.checkpoint import Checkpoint
from kitchener.ledger.verify.parallel import verify_ledger
from kitchener.ledger.verify.verification import VerifyReport, verify_file
from kitchener.records.ref import Ref

__all__ = [
    "Checkpoint",
    "LateLedgers",
    "Ledger",
    "LedgerClient",
    "LedgerEntry",
    "LedgerGroup",
    "LedgerReader",
    "Ledgers",
    "ReadableLedger",
    "Ref",
    "StoredEntry",
    "VerifyReport",
    "compute_trace_hash",
    "open_ledgers",
    "verify_file",
    "verify_ledger",
]
