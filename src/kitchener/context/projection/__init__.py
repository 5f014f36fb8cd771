"""What of the eligible context is shown under a token budget, why the rest is not, and how that is recorded. Pure."""
