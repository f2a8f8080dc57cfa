"""DVC's dependencies for code and raw files.

DVC hashes them as they lie, so an edit is seen with nothing to bring up to date. A package holds the code of all stages: after an edit DVC
starts the command of each, and Snakemake, which knows the files of each stage, runs those alone that the edit concerns.
What is outside of the folder, or in its environment, is reached by a link in workflow/code: DVC looks at nothing that .dvcignore has.
A stage has one list of dependencies, also for several tasks: after an edit of the raw files of one, Snakemake prepares that one alone.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from dagrpo.config.places import SCRIPT, place_of
from dagrpo.config.schema import Params
from dagrpo.data.task import get_task
from dagrpo.pipeline.dag import PlannedJob, planned_jobs
from dagrpo.pipeline.declaration import RAW, Stage
from dagrpo.pipeline.job_files import code_files
from dagrpo.pipeline.stages import all_stages

FOLDER = Path("workflow/code")
DEPTHS = {"src": 2, "packages": 4}  # parts of a package's path: src/dagrpo, packages/NAME/src/NAME


def code_of_stage(params: Params, stage: Stage) -> list[str]:
    """List the files and folders that hold a stage's code."""
    return sorted({str(link or place) for place, link in _places(code_files(params, stage))})


def raw_of_stage(params: Params, stage: Stage) -> list[str]:
    """List the raw files of a stage's jobs that are here; of a task with pictures the folder that holds rows and pictures."""
    return sorted({str(link or place) for place, link in map(_place, _raw(params, stage))})


def _raw(params: Params, stage: Stage) -> set[str]:
    jobs = [job for job in planned_jobs(params, params.experiment.name) if job.stage == stage.name]
    return {_with_pictures(path, job, params) for job in jobs for path in job.inputs.get(RAW, ())}


def _with_pictures(path: str, job: PlannedJob, params: Params) -> str:
    has_pictures = job.stage == "prepare" and get_task(job.wildcards["task"]).images
    return str(Path(path).parent) if has_pictures and params.data.mirror and path != params.data.pass_rates else path


def write_links(params: Params) -> None:
    """Make workflow/code have the links that the parameters need: a clone needs none."""
    for place, link in _wanted(params):
        if not _is_current(place, link):
            link.unlink(missing_ok=True)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(place)


def links_are_current(params: Params) -> bool:
    """Return True if each dependency outside of the folder has its link."""
    return all(_is_current(place, link) for place, link in _wanted(params))


def _is_current(place: Path, link: Path) -> bool:
    return link.is_symlink() and os.readlink(link) == str(place)


def _wanted(params: Params) -> set[tuple[Path, Path]]:
    stages = all_stages().values()
    code = _places(file for stage in stages for file in code_files(params, stage))
    raw = {_place(path) for stage in stages for path in _raw(params, stage)}
    return {(place, link) for place, link in code | raw if link is not None}


def _places(files: Iterable[str]) -> set[tuple[Path, Path | None]]:
    """Return the places of the packages and files that hold these files, each with its link if it is reached by one."""
    return {_place(name) for name in {SCRIPT, *map(_package, files)}}


def _place(name: str) -> tuple[Path, Path | None]:
    place = Path(str(place_of(f"{name}/")).rstrip("/")) if name.startswith(tuple(DEPTHS)) else place_of(name)
    if not place.is_absolute() and place.parts[0] != ".venv":
        return place, None
    return place.absolute(), FOLDER / name.replace("/", "+")


def _package(file: str) -> str:
    """Return the package that holds a file of dagrpo's, and the path of any other file."""
    parts = Path(file).parts
    is_ours = parts[0] == "packages" or parts[:2] == ("src", "dagrpo")
    return "/".join(parts[: DEPTHS[parts[0]]]) if is_ours else file
