"""A ledger's files as bytes: file operations, segments as one run, scans, seals."""
