"""`kitchener chat`."""
