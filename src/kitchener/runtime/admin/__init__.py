"""Lets commands change a root through the process that has it open, over a local socket that only its owner can use."""
