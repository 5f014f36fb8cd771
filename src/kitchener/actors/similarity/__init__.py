"""Compares earlier turns with a message, by vectors."""
