"""Connections from tools to HTTP services, sandboxes and user functions."""
