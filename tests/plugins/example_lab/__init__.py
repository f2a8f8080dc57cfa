"""Somebody else's plug-ins, as they would stand in a repository of their own: a task, its verifier, a reward, an advantage, a loss."""
