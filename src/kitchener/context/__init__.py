"""Context Authority: pure functions from events to a decision."""
