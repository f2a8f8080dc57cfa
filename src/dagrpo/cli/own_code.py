"""Check that a project runs its own checkout of dagrpo."""

from pathlib import Path

import dagrpo
from dagrpo.core.errors import UserError


def require_own_code() -> None:
    """UserError in a project folder whose dagrpo is not the one that runs."""
    here, running = Path("src/dagrpo").resolve(), Path(dagrpo.__file__).resolve().parent
    if here.is_dir() and here != running:
        raise UserError(
            f"This folder has its own dagrpo, but the running one is {running}: start it with "
            "`PYTHONPATH=src dagrpo ...`, or set this folder up with `make setup`."
        )
