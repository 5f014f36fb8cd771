"""Gathers material for a turn within budgets of tokens, reads and time."""
