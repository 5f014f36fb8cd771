"""Reads what is on record for a person who asks: what a turn was shown and why, what was learned, what was spent."""
