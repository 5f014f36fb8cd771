"""Checks that a ledger is what was written: verification, signed heads, recovery from a crash."""
