"""Draws the explanation of a turn as one HTML file."""
