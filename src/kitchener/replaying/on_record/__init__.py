"""Reads the record of a root: ledgers, sources of requests, routes, and sessions as they were before an import."""
