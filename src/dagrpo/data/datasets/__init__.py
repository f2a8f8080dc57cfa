"""One file per data set. Each offers TASKS, and task.py finds them."""

# Tasks of the packages beside dagrpo: what pip installs for one.
PACKAGED = {
    "verifiers": "dagrpo[agents]",
    **dict.fromkeys(("larger", "one_liners", "python_math", "worlds"), "dagrpo[toys]"),
}
