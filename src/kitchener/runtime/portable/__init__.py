"""Moves a session from one root to another as a folder of files, and adds conversations of other programs."""
