"""Which intent is active, how a message moves a session between intents, and what they make eligible. Pure."""
