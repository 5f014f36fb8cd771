"""`kitchener config`, `init` and `doctor`."""
