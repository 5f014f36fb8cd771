"""Compares what was said with a message, by vectors."""
