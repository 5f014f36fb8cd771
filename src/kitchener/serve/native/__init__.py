"""The server's own API: sessions, messages, events, approvals, intents."""
