"""`kitchener audit`."""
