"""What a tool is, what it asks, and what waits for a person, as plain values."""
