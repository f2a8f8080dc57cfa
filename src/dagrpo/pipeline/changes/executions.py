"""Executions of stages by their provenance.json, and what they would be today.

The parameters of an experiment are known if params.yaml holds it, and those of an override run if it is one of that
experiment. Every other experiment's parameters are taken to be the recorded ones.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dagrpo.config.overlay import OVERRIDE, with_overrides
from dagrpo.config.schema import Params, parse
from dagrpo.core.errors import UserError
from dagrpo.pipeline.accepted import is_accepted
from dagrpo.pipeline.dag import PlannedJob, planned_jobs, seed_of, stage_of
from dagrpo.pipeline.declaration import RAW
from dagrpo.pipeline.identity import code_digest
from dagrpo.pipeline.job_files import code_files, own_params, recorded_code
from dagrpo.pipeline.override_runs import PARAMS, override_run
from dagrpo.pipeline.raw_inputs import changed_raw, is_own
from dagrpo.pipeline.record import is_whole
from dagrpo.pipeline.stages import all_stages
from dagrpo.pipeline.validation import parse_with_tasks
from dagrpo.utils.files import read_json, read_object, sha256_of
from dagrpo.utils.manifest import MANIFEST
from dagrpo.utils.provenance import PROVENANCE, TOPS, provenances_of
from dagrpo.utils.yaml_text import read_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRecord:
    """One execution of a stage, and what it depended on."""

    provenance: Path  # the record itself
    stage: str
    experiment: str
    seed: int | None  # None for stages that all seeds share
    params: Mapping[str, Any]  # what the stage read, nested
    code: str  # one digest of all its files
    job: str | None  # the name of its file in .state/jobs; None: not on record
    environment: Mapping[str, str]
    runtime: Mapping[str, Any]  # the whole section, nested; empty where the record has none
    overrides: Mapping[str, Any]  # of an override run
    inputs: Mapping[str, str]  # sha256 by path
    outputs: Mapping[str, str]  # sha256 by path

    @property
    def what(self) -> str:
        """Return the job in words, such as "train, seed 0"."""
        return named(self.stage, self.seed, str(self.provenance))


def read_record(provenance: Path) -> ExecutionRecord:
    """Read a provenance.json. Raises UserError naming the file if it is missing or damaged."""
    record = read_object(provenance)
    return ExecutionRecord(
        provenance=provenance,
        stage=record["stage"],
        experiment=record["experiment"],
        seed=record.get("seed"),
        params=record.get("params", {}),
        code=record.get("code", ""),
        job=record.get("job"),
        environment=record.get("environment", {}),
        runtime=record.get("runtime", {}),
        overrides=record.get("overrides", {}),
        inputs=record["inputs"],
        outputs=record["outputs"],
    )


def all_records(experiment: str) -> list[ExecutionRecord]:
    """Read the record of every execution of an experiment. Raises UserError if one is damaged."""
    return [read_record(path) for path in provenances_of(experiment)]


def experiments() -> list[str]:
    """Return the names of the experiments and override runs of which this folder has at least one record."""
    names = {path.name for top in TOPS for path in Path(top).glob("*") if path.is_dir()}
    return sorted(name for name in names if next(provenances_of(name), None) is not None)


def maker_of(path: Path) -> ExecutionRecord | None:
    """Return the record of the execution that wrote a file; None without one. A checkpoint's folder stands for its manifest."""
    wanted = path / MANIFEST if path.is_dir() else path
    root = Path.cwd()
    if wanted.is_absolute() and wanted.is_relative_to(root):
        wanted = wanted.relative_to(root)
    parts = wanted.parts
    if len(parts) < 3 or parts[0] not in TOPS:
        return None
    if wanted.name.endswith(PROVENANCE):
        return read_record(wanted) if wanted.is_file() else None
    for execution in map(read_record, provenances_of(parts[1])):
        folders = {Path(output).parent for output in execution.outputs if Path(output).name == MANIFEST}
        if str(wanted) in execution.outputs or not folders.isdisjoint(wanted.parents):
            return execution
    return None


def stage_and_seed(path: str) -> tuple[str, int | None] | None:
    """Return stage and seed that write a file of the results layout, or a folder with a slash at its end; else None."""
    stage = stage_of(path)
    return None if stage is None else (stage, seed_of(path))


def named(stage: str, seed: int | None, path: str) -> str:
    """Return a job in words: its stage, its seed, its task, and of an evaluation its policy."""
    words = [stage, *([f"seed {seed}"] if seed is not None else [])]
    inner = Path(path).parts
    if inner[4:5] in (("eval",), ("validation",)):
        words += inner[5:7]
    elif inner[0] == "data":
        words += inner[2:3]
    elif "difficulty" in inner:
        words += inner[inner.index("difficulty") + 1 :][:1]
    return ", ".join(words)


@dataclass(slots=True)
class Today:
    """Reads params.yaml once, and a stage's code once for each experiment."""

    selected: Params | None = None  # the experiment of params.yaml; None: there is no such file
    _params: dict[str, Params | None] = field(default_factory=dict)
    _code: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    _jobs: dict[str, dict[str, PlannedJob]] = field(default_factory=dict)

    @classmethod
    def read(cls) -> "Today":
        """Read params.yaml if there is one. Raises UserError if it has a mistake, or names a task that cannot be imported."""
        return cls(selected=parse_with_tasks(read_yaml(PARAMS)) if PARAMS.is_file() else None)

    def params_of(self, execution: ExecutionRecord) -> Params | None:
        """Return today's parameters of the experiment of an execution; None if params.yaml holds another one."""
        if execution.experiment not in self._params:
            self._params[execution.experiment] = self._found(execution)
        return self._params[execution.experiment]

    def own_params(self, execution: ExecutionRecord) -> dict[str, Any] | None:
        """Return the parameters that the stage would read today; None if unknown."""
        params, stage = self.params_of(execution), all_stages().get(execution.stage)
        return None if params is None or stage is None else own_params(params, stage)

    def code_of(self, execution: ExecutionRecord) -> list[str] | None:
        """Return the code files of the stage by today's parameters, else those recorded for the job; None if neither is known."""
        params, stage = self.params_of(execution), all_stages().get(execution.stage)
        if params is None or stage is None:
            recorded = recorded_code(execution.code)
            return None if recorded is None else list(recorded)
        key = (execution.experiment, execution.stage)
        if key not in self._code:
            self._code[key] = code_files(params, stage)
        return self._code[key]

    def job_of(self, execution: ExecutionRecord) -> PlannedJob | None:
        """Return the job of an execution as today's parameters plan it; None if unknown."""
        params, name = self.params_of(execution), execution.experiment
        if name not in self._jobs:
            self._jobs[name] = {} if params is None else {job.provenance: job for job in planned_jobs(params, name)}
        return self._jobs[name].get(str(execution.provenance))

    def _found(self, execution: ExecutionRecord) -> Params | None:
        if self.selected is None:
            return None
        if execution.experiment == self.selected.experiment.name:
            return self.selected
        if execution.experiment.partition("~")[0] != self.selected.experiment.name:
            return None
        there = {key: value for key, value in execution.overrides.items() if value is not None}
        for overrides in (execution.overrides, there):  # null also stands for a key that the run does not have
            overlay = {key.replace(".", OVERRIDE): json.dumps(value) for key, value in overrides.items()}
            with suppress(UserError):  # they do not fit params.yaml any more
                params = parse(with_overrides(read_yaml(PARAMS) | overlay))
                if override_run(params, self.selected).folder == execution.experiment:
                    return params
        return None


def is_current(job: PlannedJob, params: Params) -> bool:
    """Return True if an execution with today's parameters and code made these outputs from these inputs."""
    try:
        record = read_json(Path(job.provenance))
        made = [path for name, paths in job.inputs.items() if name != RAW for path in paths]
        recorded = {path: digest for path, digest in record["inputs"].items() if is_own(path, record["experiment"])}
        return (
            is_made_by(record, params)
            and {path: sha256_of(Path(path)) for path in made} == recorded
            and not changed_raw(record, job.inputs.get(RAW, ()))
            and all(is_whole(Path(path), record["outputs"][path]) for path in job.files if path != job.provenance)
        )
    except (OSError, UserError, KeyError):  # missing, damaged, or of an earlier version
        return False


def is_made_by(record: Mapping[str, Any], params: Params) -> bool:
    """Return True if a provenance record has these parameters, and today's code or code that is accepted as such."""
    stage = all_stages()[record["stage"]]
    same_params = record["params"] == own_params(params, stage)
    return same_params and is_accepted(stage.name, record["code"], code_digest(code_files(params, stage)))
