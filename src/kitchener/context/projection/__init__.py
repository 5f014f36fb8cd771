"""Chooses the eligible items to show within a token budget, and records the choice with its reasons. Pure."""
