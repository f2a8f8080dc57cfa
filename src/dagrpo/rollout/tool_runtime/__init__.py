"""Tool calls: their execution, and shared parts of tools (see tools/)."""
