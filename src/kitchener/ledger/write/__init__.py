"""Turns entries into durable lines of a ledger: timestamps, commit rounds, the journal, finished segments."""
