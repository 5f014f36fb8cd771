"""The built-in rule-based model: it classifies, replies and consolidates without a network."""
