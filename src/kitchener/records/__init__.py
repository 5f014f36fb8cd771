"""Immutable values that cross a mailbox or enter a ledger."""
