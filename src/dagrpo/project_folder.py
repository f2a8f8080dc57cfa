"""The project's folder: commands that write into it, or show what is in it, have to be started there."""

from pathlib import Path

from dagrpo.errors import UserError

REMEDY = "change to the folder of the project, or `git clone` it"


def without_snakefile() -> str | None:
    """What shows that the current folder is none; None where it is one."""
    return None if Path("Snakefile").is_file() else f"{Path.cwd()} has no Snakefile"


def require_project_folder() -> None:
    """UserError in another folder, before anything is written to it."""
    if found := without_snakefile():
        raise UserError(f"{found}: {REMEDY}.")
