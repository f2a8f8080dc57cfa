"""One file per data set. Each offers TASKS, and task.py finds them."""
