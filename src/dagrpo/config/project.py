"""The project's folder: most commands have to be started there."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from dagrpo.core.errors import UserError
from dagrpo.utils.manifest import MANIFEST

REMEDY = "change to the folder of a study, or write one with `dagrpo init`"
WORK_ANYWHERE = {"convert", "diff", "doctor", "grade", "init", "inspect", "new", "search"}
TAKE_A_PATH = {"compare", "lineage", "replay", "show", "verify"}  # or a name, which is looked up in the project


def without_snakefile() -> str | None:
    """Return the evidence that the current folder is not a project's; None if it is one."""
    return None if Path("Snakefile").is_file() else f"{Path.cwd()} has no Snakefile"


def require_own_code() -> None:
    """Raise UserError in a project folder whose dagrpo is not the one that runs."""
    here, running = Path("src/dagrpo").resolve(), Path(__file__).resolve().parents[1]
    if here.is_dir() and here != running:
        raise UserError(
            f"This folder has its own dagrpo, but the one that runs is {running}: start it with "
            "`PYTHONPATH=src dagrpo ...`, or set this folder up with `make setup`."
        )


class ProjectCommand(TyperCommand):
    """A command that is refused outside of the project's folder, before it reads or writes anything."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises UserError if it needs the project's folder and was started elsewhere."""
        fault = without_snakefile()
        if fault is not None and not (self.name in TAKE_A_PATH and _is_given_a_path(ctx.params.values())):
            raise UserError(f"{fault}: {REMEDY}.")
        return super().invoke(ctx)


def require_project_folder_of(*applications: typer.Typer) -> None:
    """Refuse the commands of applications in another folder, apart from those that work anywhere."""
    for application in applications:
        for command in application.registered_commands:
            assert command.callback is not None, "a registered command has a function"
            if (command.name or command.callback.__name__) not in WORK_ANYWHERE:
                command.cls = ProjectCommand


def _is_given_a_path(values: Iterable[Any]) -> bool:
    flat = (each for value in values for each in (value if isinstance(value, list | tuple) else [value]))
    return any(_is_a_path(Path(each)) for each in flat if isinstance(each, str | Path))


def _is_a_path(path: Path) -> bool:
    """Return True if the path exists and cannot be the name of an experiment."""
    return path.is_file() or (path.is_dir() and (len(path.parts) > 1 or (path / MANIFEST).is_file()))
