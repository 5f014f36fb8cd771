"""Providers of vectors for texts, by which earlier turns are ranked."""
