"""Bounded lanes and mailboxes: places, a fair queue of what waits for one, and what the waiting tasks await."""
