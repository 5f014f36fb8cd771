"""Serves the web chat at `/`: one page with its style and modules, unchanged from the package."""
