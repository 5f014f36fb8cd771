"""Serves the agents of a runtime over HTTP: to clients of the OpenAI API, and by an API of its own."""
