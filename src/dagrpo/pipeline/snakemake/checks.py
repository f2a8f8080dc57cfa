"""Checks before jobs are planned, with errors that Snakemake shows."""

import os
import pwd
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypeVar

from snakemake.exceptions import WorkflowError

from dagrpo.config.documents import yaml_value as written
from dagrpo.config.overlay import OVERRIDE, flat, with_overrides
from dagrpo.config.schema import Params, read_params
from dagrpo.core.errors import UserError
from dagrpo.data.source import missing_in_mirror, wanted_data
from dagrpo.data.task import get_task
from dagrpo.pipeline.dag import planned_jobs
from dagrpo.pipeline.declaration import RAW, patterns_of
from dagrpo.pipeline.override_runs import PARAMS, TRY, override_run
from dagrpo.pipeline.raw_inputs import parameter_with
from dagrpo.pipeline.runner import dvc_drives
from dagrpo.pipeline.snakemake_private import executor_name, executor_settings, options
from dagrpo.pipeline.stages import all_stages
from dagrpo.pipeline.validation import parse_with_tasks
from dagrpo.utils import slurm
from dagrpo.utils.failures import sentence_of
from dagrpo.utils.manifest import MANIFEST
from dagrpo.utils.provenance import PROVENANCE, TOPS
from dagrpo.utils.yaml_text import read_yaml, yaml_value

if TYPE_CHECKING:
    from dagrpo.algorithms.teacher_config import Teacher
    from dagrpo.models.config import Model
    from dagrpo.utils.hub import Wanted

WRITTEN = (".", ".state", ".snakemake", "logs", "data", "models", "results")
OTHER_FILE = "params"  # of --config: a file in the place of params.yaml
SWEEPS = "sweeps"  # the folder of their pages, in that of an experiment's results
T = TypeVar("T")


class Refusal(WorkflowError):  # type: ignore[misc]  # Snakemake has no types
    """A user's mistake found while the Snakefile is read. The screen recognises it by this name and shows its message alone."""


def refused(check: Callable[[], T]) -> T:
    """Return the result of `check`; raise Refusal, with which Snakemake ends, for an error that the user can fix."""
    try:
        return check()
    except (UserError, OSError) as error:
        sentence = sentence_of(error)
        if sentence is None:
            raise
    raise Refusal(sentence)


def require_project() -> None:
    """Raise Refusal if params.yaml is missing or not YAML, or a folder cannot be written to."""
    refused(lambda: read_yaml(PARAMS))
    refused(lambda: require_writable(Path.cwd()))


def checked(config: Mapping[str, Any]) -> Params:
    """Return params.yaml, or the file in its place, overlaid with --config and --configfile, checked against schema and tasks."""
    given = options()
    refused(lambda: require_single_values(given.config or () if given is not None else ()))
    if OTHER_FILE not in config:
        source = str(PARAMS) if config == read_yaml(PARAMS) else f"{PARAMS} with --config"
        return refused(lambda: parse_with_tasks(with_overrides(config), source))
    path = Path(str(config[OTHER_FILE]))
    overrides = {key: value for key, value in config.items() if OVERRIDE in key}
    params = refused(lambda: parse_with_tasks(with_overrides(read_yaml(path) | overrides), str(path)))
    if TRY not in params.experiment.name:
        raise Refusal(
            f"{path}: experiment.name is {params.experiment.name}: with --config {OTHER_FILE}=... it is one of an override run, such as "
            f"{params.experiment.name}{TRY}other, so that no experiment's folders are touched."
        )
    return params


def require_single_values(entries: Iterable[str]) -> None:
    """Raise UserError for a section after --config (`training={steps: 3}`), with the form that works: Snakemake makes its values texts."""
    for entry in entries:
        key, _, text = entry.partition("=")
        try:
            section = yaml_value(text, entry, "", "")
        except UserError:  # Snakemake takes it as a text
            continue
        if isinstance(section, Mapping) and OVERRIDE not in key:
            names = {f"{key}.{name}".replace(".", OVERRIDE): value for name, value in flat(section).items()}
            works = " ".join(shlex.quote(f"{name}={written(value)}") for name, value in names.items())
            raise UserError(f"--config {entry}: the values of a section are given one by one; write --config {works}.")


def require_writable(root: Path) -> None:
    """Raise UserError if a folder of the project exists and cannot be written to by this user."""
    for folder in (root / name for name in WRITTEN):
        if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
            raise UserError(
                f"{folder} cannot be written to by you ({_user(os.geteuid())}); it belongs to {_user(folder.stat().st_uid)}: "
                "work in a copy of your own (`git clone`), or have its owner or its permissions changed."
            )


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # in a container, a user need not have a name
        return f"user {number}"


def require_own_targets(folders: Sequence[str]) -> None:
    """Raise UserError for a target that is a stage's name, or another experiment's file."""
    given = options()
    for target in given.targets if given is not None and "DVC_STAGE" not in os.environ else ():
        top, *inner = PurePath(target).parts or ("",)
        if target in all_stages():
            first = next(iter(patterns_of(all_stages()[target].outputs).values()))[0]
            raise UserError(
                f"{target} is a stage, which has several jobs: ask for an output of one of them, as in {first}, or for all with `target`."
            )
        if top not in TOPS or not inner or inner[0] in folders or SWEEPS in inner:
            continue
        folder = folders[0]
        own = PurePath(top, folder, *inner[1:])
        if TRY in folder and inner[0] == folder.partition(TRY)[0]:
            raise UserError(f"{target} is not made with overrides: the path of this override run is {own}.")
        raise UserError(
            f"{target} belongs to the experiment {inner[0]}, and this run is of {folder}: write that one's parameters to "
            f"params.yaml (`dagrpo use`), or ask for {own}."
        )


def require_mirror(params: Params, folder: str) -> None:
    """Raise UserError with all files that a mirror lacks of the data that is still to be prepared, or if it is no folder."""
    mirror, tasks = params.data.mirror, params.experiment.tasks
    unprepared = [task for task in tasks if not Path("data", folder, task, PROVENANCE).exists()]
    if mirror is None or not unprepared:
        return
    if not Path(mirror).is_dir():
        raise UserError(
            f"data.mirror is {mirror}, which is not a folder on this machine: correct it, or set it to null to use the hub."
        )
    sources = [source for task in unprepared if (source := get_task(task).source) is not None]
    mistakes = dict.fromkeys(mistake for each in sources if (mistake := missing_in_mirror(each, Path(mirror))))
    if mistakes:
        raise UserError("\n".join(mistakes))


def require_raw_files(params: Params, folder: str) -> None:
    """Raise UserError, naming the parameter, for a file that a job which is still to run reads, and that is missing or cannot be read."""
    for job in planned_jobs(params, folder):
        raw = all_stages()[job.stage].inputs.get(RAW)
        for path in raw(params, job.wildcards) if callable(raw) and not Path(job.provenance).exists() else ():
            if fault := _fault_of(Path(path)):
                raise UserError(f"{path}, which {parameter_with(path, params)} names, {fault}.")


def _fault_of(path: Path) -> str | None:
    if path.is_file():
        fault = f"cannot be read by you ({_user(os.geteuid())}): change its permissions"
        return None if os.access(path, os.R_OK) else fault
    state = "is a folder, not a file" if path.is_dir() else "is missing"
    if path.name == MANIFEST:
        return (
            f"{state}: name a checkpoint that a stage has made, such as results/<another experiment>/runs/seed_0/exported, or make "
            "one of a folder of your own with `dagrpo convert FOLDER NEW --to hf`"
        )
    return f"{state}: put it there, or name another one"


def require_hub(params: Params) -> None:
    """Raise UserError if the hub does not answer, or lacks what is still to be fetched from it.

    It is not asked for what this or another experiment of the folder already has. Below DVC each stage asks for itself.
    """
    if dvc_drives():
        return
    for wanted in _wanted_of_hub(params):
        from dagrpo.utils.hub import require_answer  # half a second, which only a first run with the hub needs

        require_answer(wanted)


def _wanted_of_hub(params: Params) -> Iterator["Wanted"]:
    sections: list[tuple[Model | Teacher, str, str]] = [
        (params.model, "model", params.model.name),
        (params.algorithm.teacher, "algorithm.teacher", "teacher"),
    ]
    for section, key, name in sections:
        if section.source == "hub" and not _has_been_made("models", name):
            from dagrpo.models.config import wanted_model

            yield wanted_model(str(section.repository), str(section.revision), key)
    if params.data.mirror is None:
        for task in params.experiment.tasks:
            source = get_task(task).source
            if source is not None and not _has_been_made("data", task):
                yield wanted_data(source)


def _has_been_made(top: str, name: str) -> bool:
    return any(Path(top).glob(f"*/{name}/{PROVENANCE}"))


def require_status_of_jobs() -> None:
    """Raise UserError if SLURM would never tell Snakemake that a job has ended: it asks sacct, which knows nothing without accounting."""
    if executor_name() != "slurm" or executor_settings().status_command == "squeue" or slurm.has_accounting():
        return
    raise UserError(
        "SLURM keeps no accounts here: `sacct` does not answer, so Snakemake would wait for its first job for ever. Add "
        "`--slurm-status-command squeue`, or use `--profile profiles/slurm`, which has it."
    )


def require_possible_weights_folder(params: Params) -> None:
    """Raise UserError if the folder for weights on their way to the engine cannot be made."""
    given = params.runtime.engine.weights_folder
    if given is None:
        return
    folder = Path(given).absolute()
    existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(
            f"runtime.engine.weights_folder is {given}, which cannot be made or written to, as {existing} is no folder that you may write "
            "to: name another folder, or null."
        )


def require_unedited(params: Params) -> None:
    """Raise UserError if params.yaml was edited while DVC drives: DVC would record the result as made by the edited file."""
    if dvc_drives() and override_run(params, read_params(PARAMS)).overrides:
        raise UserError(
            f"{PARAMS} was edited while this stage ran: what it made is not recorded. Run `dvc repro` again."
        )
