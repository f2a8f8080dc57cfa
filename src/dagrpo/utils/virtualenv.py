"""Separate Python environment for a package that conflicts with ours.

It is created when first needed, from a lock file.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sysconfig
from pathlib import Path

from dagrpo.core.errors import UserError
from dagrpo.utils.console import say

STAMP = "dagrpo.lock.sha256"  # in the environment's folder: what it was made from


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
