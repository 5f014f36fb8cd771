"""What a server counts, and how Prometheus reads it."""
