"""One turn as it is on record: what the model was shown, why, what it cost, and how the turn ended."""
