"""Tasks: data sets in one prompt form each. A task is one small file; registry.py is the list of them."""
