"""The Responses API of OpenAI: turns on record as responses."""
