"""What a message passes before its turn: checks, content, idempotency, the queue."""
