"""Connects commands with the terminal: output, progress, typed lines, interrupts."""
