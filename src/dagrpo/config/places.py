"""Places of dagrpo's own files, in a clone or installed.

A file of code has the same name in both, so that their provenance agrees: that of the repository, as `src/dagrpo/utils/files.py`. Files of
a study are named from its folder.
"""

import os
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
INSTALLED = PACKAGE / "project"  # the repository's other files that a study needs: wheel.py puts them there
ROOT = INSTALLED if INSTALLED.is_dir() else PACKAGE.parents[1]
SNAKEFILE = str(ROOT / "Snakefile")  # for `module` in a Snakefile of one's own
SCRIPT = "workflow/scripts/stage.py"  # the command line of every stage
# The start of each name, and of the path with that name.
_PATHS = {SCRIPT: str(ROOT / SCRIPT), "src/dagrpo/": f"{PACKAGE}/"}
# Modules of the packages beside dagrpo. Their code is part of a stage's, from wherever Python imports them.
PACKAGES = (
    "dagrpo_agents",
    "dagrpo_answers",
    "dagrpo_compare",
    "dagrpo_doctor",
    "dagrpo_foreign",
    "dagrpo_megatron",
    "dagrpo_mlflow",
    "dagrpo_plan",
    "dagrpo_publish",
    "dagrpo_renderers",
    "dagrpo_replay",
    "dagrpo_sandbox",
    "dagrpo_sglang_adapters",
    "dagrpo_sglang_cpu",
    "dagrpo_toys",
    "dagrpo_verl",
)


def here(path: Path) -> Path:
    """Return a path relative to the current folder if it is below it."""
    return Path(str(path).removeprefix(f"{os.getcwd()}/"))


PRESETS = here(ROOT / "presets")
KINDS = ("experiments", "models", "tasks", "algorithms", "backends", "hardware")  # of presets that `dagrpo use` takes
OWN_PRESETS = Path("presets")  # of a study; in a clone the same folder


def presets_of(kind: str, folder: Path = PRESETS) -> dict[str, Path]:
    """Return the files of a kind of presets by their name: a study's own ones, and dagrpo's of other names."""
    folders = (folder, OWN_PRESETS) if folder == PRESETS else (folder,)
    return {path.stem: path for each in folders for path in sorted((each / kind).glob("*.yaml"))}


def place_of(name: str) -> Path:
    """Return the path of a file of code: relative if it is below the current folder."""
    return here(
        Path(next((path + name[len(start) :] for start, path in _paths().items() if name.startswith(start)), name))
    )


def name_of(path: Path) -> str:
    """Return the name of a file of code, the same in a clone and with an installed dagrpo; of one outside of both and of here its path."""
    resolved = str(path.resolve())
    found = (start + resolved[len(path) :] for start, path in _paths().items() if resolved.startswith(path))
    return next(found, str(here(Path(resolved))))


def is_dagrpos(path: Path) -> bool:
    """Return True for a file of dagrpo or of a package beside it."""
    return str(path.resolve()).startswith(tuple(_paths().values()))


@cache
def _paths() -> dict[str, str]:
    specs = {name: find_spec(name) for name in PACKAGES}
    return _PATHS | {
        f"packages/{name}/src/{name}/": f"{Path(spec.origin).resolve().parent}/"
        for name, spec in specs.items()
        if spec is not None and spec.origin is not None
    }


def is_clone() -> bool:
    """Return True if the current folder is that of dagrpo's repository."""
    return Path("src/dagrpo").is_dir()


def add_own_code() -> None:
    """Let modules in `src` of the current folder be imported first, as in a stage: a study's own tasks, rewards and losses."""
    own = os.path.abspath("src")
    if os.path.isdir(own) and own not in sys.path:
        sys.path.insert(0, own)
