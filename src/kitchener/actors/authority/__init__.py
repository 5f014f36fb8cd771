"""Runs the Context Authority in sessions: keeps its input and records its decisions."""
