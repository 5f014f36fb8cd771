"""`kitchener memory`."""
