"""Command `dagrpo clean`: folders, resumable states and logs of override runs."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from filelock import FileLock, Timeout

from dagrpo.core.errors import UserError
from dagrpo.pipeline.locks import RUNNING, lock_of
from dagrpo.pipeline.record import STATES
from dagrpo.utils.provenance import TOPS

OVERRIDE_RUN = re.compile(r"([a-z0-9][a-z0-9_.-]*~[a-z0-9_]+)(-[0-9a-f]+)?")


def clean(
    override_runs: Annotated[
        bool,
        typer.Option("--override-runs", help="remove the folders of all override runs; without it nothing is removed"),
    ] = False,
) -> None:
    """Remove override runs, and print their names. Their history in MLflow stays."""
    if not override_runs:
        raise UserError(
            "Say what to remove: `dagrpo clean --override-runs`; an experiment's own results are yours to delete."
        )
    for line in remove_override_runs(Path.cwd()):
        print(line)


def remove_override_runs(root: Path) -> Iterator[str]:
    """Remove a project's override runs one by one, and yield each name with its size. Raises UserError if one is running."""
    runs = _override_runs(root)
    if not runs:
        yield "There are no override runs."
    for name, folders in sorted(runs.items()):
        size = sum(file.lstat().st_size for folder in folders for file in folder.rglob("*") if file.is_file())
        with _locked(root, name):
            for folder in folders:
                shutil.rmtree(folder)
        (root / RUNNING / f"{name}.json").unlink(missing_ok=True)  # the lock stays: another run may be waiting for it
        yield f"{name}: removed {', '.join(str(folder.relative_to(root)) for folder in folders)} ({size / 1e6:.1f} MB)"


def _override_runs(root: Path) -> dict[str, list[Path]]:
    runs: dict[str, list[Path]] = {}
    for top in (*TOPS, "logs", str(STATES)):
        for folder in sorted((root / top).iterdir()) if (root / top).is_dir() else ():
            match = OVERRIDE_RUN.fullmatch(folder.name)
            was_run = match and (root / lock_of(match[1])).exists()  # else it is the user's folder
            if match and was_run and folder.is_dir() and not folder.is_symlink():
                runs.setdefault(match[1], []).append(folder)
    return runs


@contextmanager
def _locked(root: Path, name: str) -> Iterator[None]:
    (root / RUNNING).mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(root / lock_of(name), timeout=0):
            yield
    except Timeout:
        raise UserError(f"{name} is being run: stop it first, or wait for its end.") from None
