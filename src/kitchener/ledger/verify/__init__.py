"""Whether a ledger is what was written: verification, signed heads, and what to do about damage."""
