"""What a program asks of the ledgers: sessions, approvals, and what was spent."""
