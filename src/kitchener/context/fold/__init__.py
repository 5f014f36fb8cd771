"""Turns the entries of a session into the state that context decisions use. Pure."""
