"""`kitchener session` and `kitchener subject`."""
