"""How commands speak and listen: output, progress, typed lines, interrupts."""
