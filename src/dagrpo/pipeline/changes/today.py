"""Today's parameters and code of a stage, from this folder.

The parameters of an experiment are known if params.yaml holds it, and those of an override run if it is one of that
experiment. Every other experiment's parameters are taken to be the recorded ones.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dagrpo.config.overlay import OVERRIDE, with_overrides
from dagrpo.config.schema import Params, parse
from dagrpo.core.errors import UserError
from dagrpo.pipeline.changes.executions import ExecutionRecord
from dagrpo.pipeline.dag import PlannedJob, planned_jobs
from dagrpo.pipeline.declaration import RAW
from dagrpo.pipeline.identity import code_digest
from dagrpo.pipeline.job_files import code_files, own_params, recorded_code
from dagrpo.pipeline.override_runs import PARAMS, override_run
from dagrpo.pipeline.raw_inputs import changed_raw, is_own
from dagrpo.pipeline.record import is_whole
from dagrpo.pipeline.stages import all_stages
from dagrpo.pipeline.validation import parse_with_tasks
from dagrpo.utils.files import read_json, sha256_of
from dagrpo.utils.yaml_text import read_yaml


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
        without_removed = {key: value for key, value in execution.overrides.items() if value is not None}
        for overrides in (
            execution.overrides,
            without_removed,
        ):  # null also stands for a key that the run does not have
            params = _overlaid(overrides)
            if params is not None and override_run(params, self.selected).folder == execution.experiment:
                return params
        return None


def _overlaid(overrides: Mapping[str, Any]) -> Params | None:
    """Return params.yaml with these keys replaced; None if they do not fit it any more."""
    overlay = {key.replace(".", OVERRIDE): json.dumps(value) for key, value in overrides.items()}
    try:
        return parse(with_overrides(read_yaml(PARAMS) | overlay))
    except UserError:
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
    """Return True if a provenance record has these parameters and today's code."""
    stage = all_stages()[record["stage"]]
    same_params = record["params"] == own_params(params, stage)
    return bool(same_params and record["code"] == code_digest(code_files(params, stage)))
