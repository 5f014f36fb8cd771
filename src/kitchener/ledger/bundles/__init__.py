"""Writes the proof of one turn as a bundle, and verifies bundles."""
