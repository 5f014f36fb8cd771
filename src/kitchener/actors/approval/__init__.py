"""Handles tool calls that wait for a person: requests, answers, and the continuation of the tool loop."""
