"""Connections from tools to MCP servers, HTTP services and user functions."""
