"""Tools of an agent class that are no functions: MCP servers, and other agent classes."""
