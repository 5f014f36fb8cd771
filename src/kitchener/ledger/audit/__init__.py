"""For whoever doubts a ledger: verification in several processes, proofs of single turns, restored backups."""
