"""Whose code runs: that of the folder that dagrpo's Snakefile is in, also where another folder's dagrpo is installed.

A second clone, or DVC's temporary copy for an experiment, shares the environment of the first. What a stage runs must be
what its folder holds, since that is what its provenance names.
"""

import os
import sys
from pathlib import Path


def use_code_of(root: Path) -> None:
    """Put the packages of a project folder, then those of the current one, before installed ones, for this process and all that it starts.

    SystemExit: dagrpo comes from another folder all the same.
    """
    own = (root / "src", *sorted(root.glob("packages/*/src")), Path("src").absolute())
    folders = list(dict.fromkeys(str(path) for path in own if path.is_dir()))
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in folders]
    sys.path[:] = [*folders, *(path for path in sys.path if path not in folders)]
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *others])
    import dagrpo

    found = Path(dagrpo.__file__).resolve()
    if found.parent not in (
        (root / "src/dagrpo").resolve(),
        root.resolve().parent,
    ):  # of a clone, of an installed package
        raise SystemExit(
            f"{root} would run the code of another folder ({found.parent}): start it as a process of its own, "
            "with the Python of an environment in which `make setup` or `pip install -e .` has installed dagrpo."
        )
