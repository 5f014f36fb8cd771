"""Decides which intent is active, how a message changes it, and which items intents make eligible. Pure."""
