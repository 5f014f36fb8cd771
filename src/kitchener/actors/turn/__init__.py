"""One turn of one session, from the message to its commit record."""
