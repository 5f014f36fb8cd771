"""Turns the entries of a session into the state that context is decided from. Pure."""
