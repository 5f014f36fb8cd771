"""Runs typed functions as tools for a model, within limits of time, size and threads."""
