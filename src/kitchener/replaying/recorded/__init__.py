"""Reads back what a root has on record: ledgers, sources of requests, routes, and sessions as they were before an import."""
