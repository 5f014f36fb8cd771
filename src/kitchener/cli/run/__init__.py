"""`kitchener run`."""
