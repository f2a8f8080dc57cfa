"""One file per kind of data set, which offers TASKS to task.py."""

# Tasks of the packages beside dagrpo: what pip installs for one.
PACKAGED = {
    "verifiers": "dagrpo[agents]",
    **dict.fromkeys(("larger", "one_liners", "python_math", "worlds"), "dagrpo[toys]"),
}
