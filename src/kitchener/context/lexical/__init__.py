"""Ranks turns against a message by their words. Pure."""
