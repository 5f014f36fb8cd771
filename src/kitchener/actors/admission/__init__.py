"""Handles a message before its turn: checks, content, idempotency, the queue."""
