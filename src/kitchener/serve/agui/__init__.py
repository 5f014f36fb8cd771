"""The AG-UI door: agents for web front ends."""
