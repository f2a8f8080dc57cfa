"""Check that a command was started in the project's folder.

Commands that write into it, or show its contents, require that.
"""

from pathlib import Path

from dagrpo.errors import UserError

REMEDY = "change to the folder of the project, or `git clone` it"


def without_snakefile() -> str | None:
    """Return the evidence that the current folder is not a project's; None if it is one."""
    return None if Path("Snakefile").is_file() else f"{Path.cwd()} has no Snakefile"


def require_project_folder() -> None:
    """Raise UserError in any other folder, before anything is written to it."""
    if found := without_snakefile():
        raise UserError(f"{found}: {REMEDY}.")
