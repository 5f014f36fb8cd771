"""What appends to a ledger: time stamps, commit rounds, the journal, finished segments."""
