"""Lines, bytes and hashes. Pure."""
