"""Finds entries of a session or key without a scan. Derived, rebuildable, never trusted over the journal."""
