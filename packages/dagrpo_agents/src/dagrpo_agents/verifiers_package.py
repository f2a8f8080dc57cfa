"""Commands of the package `verifiers`, in an environment from its lock file."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dagrpo.core.errors import UserError
from dagrpo.utils.child_variables import passed_on
from dagrpo.utils.console import say

LOCK = "requirements/verifiers.lock"
ENVIRONMENT = ".venv-verifiers"
STAMP = "dagrpo.lock.sha256"  # in the environment's folder: what it was made from
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


def python_of(folder: Path, lock: Path) -> Path:
    """Return the environment's interpreter. A changed lock file recreates it. Raises UserError if it cannot be created."""
    if not lock.exists():
        raise UserError(f"{lock} is missing: start dagrpo in the project's folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.making").open("w") as making:
        fcntl.flock(making, fcntl.LOCK_EX)  # another run may be making it
        stamp = folder / STAMP
        if not stamp.exists() or stamp.read_text() != digest(lock):
            _make(folder, lock)
            stamp.write_text(digest(lock))
    return folder / "bin" / "python"


def digest(lock: Path) -> str:
    """Return the digest of the lock file, which identifies an environment."""
    return hashlib.sha256(lock.read_bytes()).hexdigest()


def uv() -> str:
    """Return the path of uv, which is installed with dagrpo."""
    path = shutil.which("uv", path=sysconfig.get_path("scripts")) or shutil.which("uv")
    if path is None:
        raise UserError("uv is needed to make an environment: pip install uv.")
    return path


def _make(folder: Path, lock: Path) -> None:
    say(f"Making the environment {folder} from {lock}.")
    commands = [
        [uv(), "venv", "--quiet", "--clear", str(folder)],
        [
            *(uv(), "pip", "sync", "--quiet", "--compile-bytecode", "--require-hashes"),
            *("--python", str(folder / "bin" / "python"), str(lock)),
        ],
    ]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UserError(f"{folder} cannot be made from {lock}: {done.stderr.strip()[-500:]}")
