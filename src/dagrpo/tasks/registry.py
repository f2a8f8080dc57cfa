"""Every task by its name. A new task is one file, and one line here."""

import difflib

from dagrpo.tasks import aime, arithmetic, gsm8k
from dagrpo.tasks.task import Task

TASKS = {task.name: task for task in (arithmetic.TASK, gsm8k.TASK, aime.TASK_2024, aime.TASK_2025)}


def get_task(name: str) -> Task:
    """The task of that name. ValueError gives the nearest known one."""
    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.4)
        hint = f"the nearest known one is `{near[0]}`" if near else f"the known ones are {', '.join(TASKS)}"
        raise ValueError(f"`{name}` is not a task: {hint}; correct experiment.tasks.")
    return TASKS[name]
