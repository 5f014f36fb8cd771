"""`kitchener intent`."""
