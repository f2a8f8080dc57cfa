"""Commands of the package `verifiers`, which lives in a separate environment."""

import json
import os
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dagrpo.utils.child_variables import passed_on
from dagrpo.utils.virtualenv import python_of

LOCK = "requirements/verifiers.lock"
ENVIRONMENT = ".venv-verifiers"
# Run, never imported: its packages are in the other environment.
WORKER = Path(__file__).with_name("verifiers_worker.py")


def worker_command(
    taskset: str,
    parameters: Mapping[str, Any],
    *,
    lock: str = LOCK,
    environment: str = ENVIRONMENT,
    **options: Any,
) -> list[str]:
    """Return the command that lists the first `list` tasks of the taskset, or runs tasks with `harness` and `max_turns`.

    Raises UserError if its environment cannot be created.
    """
    settings = {"taskset": taskset, "parameters": parameters, **options}
    python = python_of(Path(environment), Path(lock))
    return [str(python.absolute()), "-P", str(WORKER), json.dumps(settings)]


def worker_variables() -> dict[str, str]:
    """Return the environment variables of the worker. The package prepares its own programs with uv."""
    variables = passed_on()
    return variables | {"PATH": f"{variables.get('PATH', os.defpath)}{os.pathsep}{sysconfig.get_path('scripts')}"}
