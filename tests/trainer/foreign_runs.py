"""Runs of another trainer's stand-in: four steps of the tiny model, whose checkpoint has the format dcp.

`python -m dagrpo.pipeline.launch ... tests/trainer/foreign_runs.py FOLDER CHANGES` trains with inputs that are there.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.trainer import runs

from dagrpo.config.overlay import merged
from dagrpo.config.schema import Params, parse
from dagrpo.core.errors import TransientError, UserError
from dagrpo.data.schema import to_table
from dagrpo.trainer.backends import BACKENDS
from dagrpo.trainer.run import Report, TrainingRun, no_report
from dagrpo.utils.failures import exit_code_of
from dagrpo.utils.tables import write_parquet

PACKAGES = Path(__file__).parents[2] / "packages"
STAND_INS = {  # which train nothing
    "verl": PACKAGES / "dagrpo_verl/tests/stand_in",
    "megatron_lm": PACKAGES / "dagrpo_megatron/tests/backend/stand_in",
}
CHANGES: dict[str, Any] = {
    "rollout": {"deterministic": False, "dtype": "bfloat16", "max_new_tokens": 10},
    "training": {"dtype": "bfloat16", "steps": 4, "prompts_per_step": 4},
    "runtime": {"training": {"save_every": 2, "processes": 2}},
}


def path_with(trainer: str) -> str:
    """Return PYTHONPATH with a stand-in first."""
    return os.pathsep.join([str(STAND_INS[trainer]), *filter(None, [os.environ.get("PYTHONPATH")])])


def run_in(folder: Path, changes: dict[str, Any]) -> TrainingRun:
    """Make the inputs, and return a run with a checkpoint after every second step."""
    runs.make_inputs(folder)
    return run_of(folder, changes)


def run_of(folder: Path, changes: dict[str, Any]) -> TrainingRun:
    """Return the run, in a state whose name is that of an override run."""
    (folder / "out").mkdir(exist_ok=True)
    inputs = folder / "initial", folder / "train.parquet"
    run = runs.training_run(inputs, folder / "name~run", folder / "out", 4)
    return replace(run, **sections_of(parse(merged(CHANGES, changes))))


def mixture_in(folder: Path, changes: dict[str, Any], shares: dict[str, float]) -> TrainingRun:
    """Return a run of two tasks with answers in another form: ten problems of `arithmetic`, `####`, and six of `boxed`."""
    run = run_in(folder, merged({"rollout": {"max_new_tokens": 14}}, changes))
    boxed = [replace(runs.task_row(number), task="boxed", verifier="math") for number in range(6)]
    write_parquet(folder / "boxed.parquet", to_table(boxed))
    splits = {"arithmetic": folder / "train.parquet", "boxed": folder / "boxed.parquet"}
    return replace(run, train_splits=splits, shares=shares)


def sections_of(params: Params) -> dict[str, Any]:
    """Return the sections of a run."""
    return {name: getattr(params, name) for name in ("rollout", "reward", "algorithm", "training", "runtime")}


def train(run: TrainingRun, report: Report = no_report, settings: dict[str, object] | None = None) -> None:
    """Train by the backend of the run, with other settings if they are given."""
    backend = run.training.backend
    config = backend if settings is None else backend.model_copy(update={"settings": settings})
    BACKENDS.get(backend.name).train(run, config, threads=1, report=report, report_held_out=no_report)


def silent_for(run: TrainingRun, minutes: float) -> TrainingRun:
    """Return the run with this longest silence."""
    backend = run.runtime.backend.model_copy(update={"silent_minutes": minutes})
    return replace(run, runtime=run.runtime.model_copy(update={"backend": backend}))


def main(folder: Path, changes: dict[str, Any]) -> None:
    """Train in this process, which is one of several nodes, and end as a stage does."""
    os.environ["PYTHONPATH"] = path_with(changes["training"]["backend"]["name"])
    try:
        train(run_of(folder, changes), lambda step, metrics: print(f"step {step}", flush=True))
    except (UserError, TransientError) as error:
        print(error, file=sys.stderr)
        sys.exit(exit_code_of(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
