"""Turns entries into lines with hashes, and lines into entries. Pure: no file, clock or log."""
