"""`kitchener context`."""
