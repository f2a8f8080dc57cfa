"""One file per data set. Each offers TASKS, and task.py finds them."""

PACKAGED = {"verifiers": "dagrpo[agents]"}  # tasks of the packages beside dagrpo: what pip installs for one
