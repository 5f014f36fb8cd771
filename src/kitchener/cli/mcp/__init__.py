"""`kitchener mcp`."""
