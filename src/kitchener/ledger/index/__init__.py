"""Finds the entries of a session or key without a scan. The index is derived from the journal and can be rebuilt from it."""
