"""Counts the work of a server, and writes the counts for Prometheus."""
