"""The registry of tasks: modules of data_sets/, entry points, import paths.

A task's name is the name of its folder in data/, so that an import path is written with dots: `my_lab.tasks.capitals`.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from dagrpo.core.plugins import Plugins
from dagrpo.data.task import Problems, Task

if TYPE_CHECKING:
    from dagrpo.data.config import Data

TASKS: Plugins[Task] = Plugins(
    what="task",
    package="dagrpo.data.datasets",
    attribute="TASKS",
    group="dagrpo.tasks",
    key="experiment.train, evaluate and tasks",
    kind=Task,
    several=True,
    separator=".",
)


def get_task(name: str) -> Task:
    """Return the task of that name, and called so, whatever it calls itself. UserError gives the nearest known one."""
    task = TASKS.get(name)
    return task if task.name == name else _called(name, task)


def _called(name: str, task: Task) -> Task:
    """Return the task with another name, which its problems have, too."""

    def load(params: "Data") -> Problems:
        problems = task.load(params)
        splits = {
            split: [replace(example, task=name) for example in examples] for split, examples in problems.splits.items()
        }
        return replace(problems, splits=splits)

    return replace(task, name=name, load=load)
