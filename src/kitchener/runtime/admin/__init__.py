"""Lets commands change a root through the process that has it open, by a local socket that only its owner can use."""
