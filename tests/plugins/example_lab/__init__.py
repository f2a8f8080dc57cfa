"""Somebody else's plug-ins, as they would stand in a repository of their own: one of each kind."""
