"""The web chat at `/`: one page with its style and modules, served from the package as they are."""
