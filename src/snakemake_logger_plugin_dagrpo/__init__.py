"""Terminal output of this workflow's Snakemake runs.

Stages that start and end, and one panel after a failure. Snakemake finds this package by its name and imports it whenever it starts,
before the Snakefile says whose code runs: so nothing here imports dagrpo. The two share the form of the files in `.state/failures`.
"""

import getpass
import os
from contextlib import suppress
from pathlib import Path

from snakemake_logger_plugin_dagrpo.handler import LogHandler

__all__ = ["LogHandler"]


def _complete_account() -> None:
    """Set the variables that stand in for a user's name and for a cache that can be written, where a container has none.

    Snakemake asks for both before it reads the Snakefile, and so do libraries of the stages.
    """
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = str(os.getuid())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
    if not os.access(cache, os.W_OK | os.X_OK):
        own = Path(".state/cache").absolute()
        os.environ |= {"XDG_CACHE_HOME": str(own), "MPLCONFIGDIR": str(own / "matplotlib")}


_complete_account()
