"""Provides tools that are not functions: tools of MCP servers, and other agent classes."""
