"""Identifies callers and limits them: keys, subjects, rates."""
