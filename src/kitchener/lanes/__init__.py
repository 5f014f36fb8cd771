"""Bounded lanes and mailboxes: places, a fair queue of what waits for one, and what the waiting tasks await.

Also calls of threads that no cancellation cuts off.
"""
