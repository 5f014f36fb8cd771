"""Rebuilds requests to models from the ledgers, and divides them into parts."""
