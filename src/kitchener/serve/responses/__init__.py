"""Serves recorded turns by the Responses API of OpenAI."""
