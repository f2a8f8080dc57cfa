"""Folders of links to each stage's code, DVC's one dependency for it.

DVC hashes a folder through its links, so an edited file of code changes the dependency of just the stages that it belongs to, with
nothing to bring up to date: a file with a digest would be true only after one of our own commands. Which links there are follows
params.yaml, as dvc.yaml does. They are relative, and part of the repository: other commits, other clones and the temporary copies of
`dvc exp run` have their own code behind them.
"""

import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from dagrpo.config.places import SCRIPT, place_of
from dagrpo.config.schema import Params
from dagrpo.pipeline.declaration import Stage
from dagrpo.pipeline.job_files import code_files
from dagrpo.pipeline.stages import all_stages

FOLDER = Path("workflow/code")


def folder_of(stage: Stage) -> str:
    """Return the folder with the links to a stage's code."""
    return str(FOLDER / stage.name)


def link_name(file: str) -> str:
    """Return the name of the link to a file of code: `src+dagrpo+utils+files.py`."""
    return file.replace("/", "+")


def links_are_current(params: Params) -> bool:
    """Return True if each stage's folder has a link to each file of its code, and nothing else."""
    return _found() == _wanted(params)


def write_links(params: Params) -> None:
    """Make the folders have the links that the parameters select, and nothing else."""
    found, wanted = _found(), _wanted(params)
    for name in found.keys() - wanted.keys():
        shutil.rmtree(FOLDER / name, ignore_errors=True)
    for name, links in wanted.items():
        (FOLDER / name).mkdir(parents=True, exist_ok=True)
        _write(FOLDER / name, found.get(name, {}), links)


def _write(folder: Path, found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    changed = {name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)}
    for name in changed & found.keys():
        if (folder / name).is_dir() and not (folder / name).is_symlink():
            shutil.rmtree(folder / name)
        else:
            (folder / name).unlink(missing_ok=True)
    for name in changed & wanted.keys():
        with suppress(FileExistsError):  # another command has just written it
            (folder / name).symlink_to(wanted[name])


def _wanted(params: Params) -> dict[str, dict[str, str]]:
    """Return the links of each stage: what each points to, by name."""
    return {name: _links([SCRIPT, *code_files(params, stage)]) for name, stage in all_stages().items()}


def _links(files: Iterable[str]) -> dict[str, str]:
    up = "../" * (len(FOLDER.parts) + 1)
    places = {file: str(place_of(file)) for file in files}
    return {link_name(file): place if place.startswith("/") else up + place for file, place in places.items()}


def _found() -> dict[str, dict[str, str]]:
    """Return what each link points to, by folder and name; a file in the place of a link points to nothing."""
    return {folder.name: dict(map(_pointer, folder.iterdir())) for folder in FOLDER.glob("*") if folder.is_dir()}


def _pointer(path: Path) -> tuple[str, str]:
    return path.name, os.readlink(path) if path.is_symlink() else ""
