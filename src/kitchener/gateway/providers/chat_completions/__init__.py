"""Providers of kind `openai_compatible`: endpoints that speak OpenAI's chat-completions format, without a vendor's library."""
