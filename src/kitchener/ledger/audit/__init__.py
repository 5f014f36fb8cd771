"""Tools of an auditor: verification in several processes, proofs of single turns, acceptance of restored backups."""
