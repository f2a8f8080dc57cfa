"""Connections from tools to HTTP services and user functions."""
