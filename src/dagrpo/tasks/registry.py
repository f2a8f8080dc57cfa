"""Every task by its name: whatever the modules of data_sets/ offer as TASKS. A new task is one file there."""

import difflib
import importlib
import pkgutil

from dagrpo.errors import UserError
from dagrpo.tasks import data_sets
from dagrpo.tasks.task import Task


def discover() -> dict[str, Task]:
    """The tasks of all modules of data_sets/, by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(data_sets.__path__))
    modules = [importlib.import_module(f"{data_sets.__name__}.{name}") for name in names]
    tasks: list[Task] = [task for module in modules for task in module.TASKS]
    found = {task.name: task for task in tasks}
    assert len(found) == len(tasks), f"two tasks of one name: {sorted(task.name for task in tasks)}"
    return found


TASKS = discover()


def get_task(name: str) -> Task:
    """The task of that name. UserError gives the nearest known one."""
    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.4)
        hint = f"the nearest known one is `{near[0]}`" if near else f"the known ones are {', '.join(TASKS)}"
        raise UserError(f"`{name}` is not a task: {hint}; correct experiment.tasks.")
    return TASKS[name]
