"""Classifies messages by fixed rules: no model, no network, the same answer every time."""
