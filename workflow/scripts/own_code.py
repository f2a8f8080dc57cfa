"""Whose code runs: that of the folder that the Snakefile is in, also where another folder's dagrpo is installed.

A second clone, or DVC's temporary copy for an experiment, shares the environment of the first. What a stage runs must be
what its folder holds, since that is what its provenance names.
"""

import os
import sys
from pathlib import Path


def use_code_of(root: Path) -> None:
    """Put the packages of a project folder before installed ones, for this process and for all that it starts.

    SystemExit: dagrpo comes from another folder all the same.
    """
    folders = [str(root / "src"), *(str(path) for path in sorted(root.glob("packages/*/src")))]
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in folders]
    sys.path[:] = [*folders, *(path for path in sys.path if path not in folders)]
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *others])
    import dagrpo

    found = Path(dagrpo.__file__).resolve()
    if not found.is_relative_to(root.resolve()):
        raise SystemExit(
            f"{root} would run the code of another folder ({found.parent}): start it as a process of its own, "
            "with the Python of an environment in which `make setup` or `pip install -e .` has installed dagrpo."
        )
