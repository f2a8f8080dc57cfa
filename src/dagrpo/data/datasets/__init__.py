"""One file per kind of data set, which offers TASKS to task.py."""

# Tasks of the packages beside dagrpo: what pip installs for one.
PACKAGED = {
    "verifiers": "dagrpo[agents]",
    **dict.fromkeys(
        ("arithmetic_alone", "arithmetic_tool", "larger", "one_liners", "python_math", "shapes", "worlds"),
        "dagrpo[toys]",
    ),
}
