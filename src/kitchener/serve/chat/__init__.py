"""The OpenAI-compatible door: models and chat completions."""
