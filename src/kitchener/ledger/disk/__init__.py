"""Reads and writes a ledger's files as bytes: file operations, segments as one address space, scans, manifests."""
