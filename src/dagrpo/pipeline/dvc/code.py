"""DVC's dependencies for code and raw files.

DVC hashes them as they lie, so an edit is seen with nothing to bring up to date. A package holds the code of all stages: after an edit DVC
starts the command of each, and Snakemake, which knows the files of each stage, runs those alone that the edit concerns.
A stage has one list of dependencies, also for several tasks: after an edit of the raw files of one, Snakemake prepares that one alone.

Code outside of the folder, or in its environment, is reached by a link in workflow/code: DVC looks at nothing that .dvcignore has. A raw
file is reached below a link to its folder in workflow/raw, and is an output of the stage `check` there: where it is missing, DVC runs
`check`, which says so, before a stage that reads it, for which DVC would end with the bare error of its first look.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from dagrpo.config.places import SCRIPT, place_of
from dagrpo.config.schema import Params
from dagrpo.data.task import get_task
from dagrpo.pipeline.dag import PlannedJob, planned_jobs
from dagrpo.pipeline.declaration import RAW, Stage
from dagrpo.pipeline.identity import LIBRARY
from dagrpo.pipeline.job_files import code_files
from dagrpo.pipeline.stages import all_stages

FOLDER = Path("workflow/code")
RAW_FOLDER = Path("workflow/raw")
HERE = "+"  # the link to the current folder
DEPTHS = {"src": 2, "packages": 4}  # parts of a package's path: src/dagrpo, packages/NAME/src/NAME


def code_of_stage(params: Params, stage: Stage) -> list[str]:
    """List the files and folders that hold a stage's code."""
    return sorted({str(link or place) for place, link in _places(code_files(params, stage))})


def raw_of_stage(params: Params, stage: Stage) -> list[str]:
    """List the raw files of a stage's jobs that are here; of a task with pictures the folder that holds rows and pictures."""
    return sorted(str(_below_link(path)[1]) for path in _raw(params, stage))


def outputs_of_check(params: Params) -> list[str]:
    """List what the stage `check` makes: the links to code, and the raw files below their links."""
    stages = all_stages().values()
    links = {str(link) for stage in stages for _, link in _places(code_files(params, stage)) if link is not None}
    return sorted(links.union(*(raw_of_stage(params, stage) for stage in stages)))


def raw_file_at(output: str) -> str:
    """Return the path of a raw file, from that below its link, which need not be there."""
    link, _, name = output.removeprefix(f"{RAW_FOLDER}/").partition("/")
    return str(Path("" if link == HERE else link.replace("+", "/"), name))


def _raw(params: Params, stage: Stage) -> set[str]:
    jobs = [job for job in planned_jobs(params, params.experiment.name) if job.stage == stage.name]
    return {_with_pictures(path, job, params) for job in jobs for path in job.inputs.get(RAW, ())}


def _with_pictures(path: str, job: PlannedJob, params: Params) -> str:
    has_pictures = job.stage == "prepare" and get_task(job.wildcards["task"]).images
    return str(Path(path).parent) if has_pictures and params.data.mirror and path != params.data.pass_rates else path


def write_links(params: Params) -> None:
    """Make workflow/code and workflow/raw have the links that the parameters need."""
    for link, target in _wanted(params).items():
        if not _is_current(link, target):
            link.unlink(missing_ok=True)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)


def links_are_current(params: Params) -> bool:
    """Return True if each link that the parameters need is there."""
    return all(_is_current(link, target) for link, target in _wanted(params).items())


def _is_current(link: Path, target: str) -> bool:
    return link.is_symlink() and os.readlink(link) == target


def _wanted(params: Params) -> dict[Path, str]:
    """Return the target of each link."""
    stages = all_stages().values()
    code = _places(file for stage in stages for file in code_files(params, stage))
    raw = [_below_link(path) for stage in stages for path in _raw(params, stage)]
    return {link: str(place) for place, link in code if link is not None} | {link: target for link, _, target in raw}


def _below_link(path: str) -> tuple[Path, Path, str]:
    """Return the link to a raw file's folder, the file's path below it, and the link's target.

    A folder that DVC has itself is linked to directly: DVC would take its folder for another repository.
    """
    folder = Path(path).parent
    if Path(path).is_dir() and Path(folder, ".dvc").is_dir():
        folder = Path(path)
    link = RAW_FOLDER / (HERE if folder == Path() else str(folder).replace("/", "+"))
    target = str(folder) if folder.is_absolute() else os.path.relpath(folder, RAW_FOLDER)
    return link, link / Path(path).relative_to(folder), target


def _places(files: Iterable[str]) -> set[tuple[Path, Path | None]]:
    """Return the places of the packages and files that hold these files, each with its link if it is reached by one."""
    return {_place(name) for name in {SCRIPT, *(_package(file) for file in files if not file.startswith(LIBRARY))}}


def _place(name: str) -> tuple[Path, Path | None]:
    if name.startswith(tuple(DEPTHS)) and Path(name).is_dir():  # of a clone, also where its environment has a copy
        return Path(name), None
    place = Path(str(place_of(f"{name}/")).rstrip("/")) if name.startswith(tuple(DEPTHS)) else place_of(name)
    if not place.is_absolute() and place.parts[0] != ".venv":
        return place, None
    return place.absolute(), FOLDER / name.replace("/", "+")


def _package(file: str) -> str:
    """Return the package that holds a file of dagrpo's, and the path of any other file."""
    parts = Path(file).parts
    is_ours = parts[0] == "packages" or parts[:2] == ("src", "dagrpo")
    return "/".join(parts[: DEPTHS[parts[0]]]) if is_ours else file
