"""Connects to MCP servers and offers their tools to agents."""
