"""Serves agents to clients of the OpenAI API: models and chat completions."""
