"""Serves the server's own API: sessions, messages, events, approvals, intents."""
