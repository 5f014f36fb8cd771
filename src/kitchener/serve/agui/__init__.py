"""Serves agents to web front ends that speak AG-UI."""
