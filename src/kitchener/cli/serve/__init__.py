"""`kitchener serve`."""
