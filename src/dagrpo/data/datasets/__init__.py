"""One file per data set. Each offers TASKS, and registry.py finds them."""
