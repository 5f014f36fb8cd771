"""Consolidation after the reply: one work order for each signal whose gate is open."""
