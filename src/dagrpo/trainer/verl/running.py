"""Run of verl: files, checks, start, checkpoint."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dagrpo.checkpoints.source import open_as
from dagrpo.core.errors import TransientError, UserError
from dagrpo.trainer.backend_files import Metrics, Program, write_tables
from dagrpo.trainer.foreign.draws import Comparison
from dagrpo.trainer.foreign.files import DRAWS, HUGGINGFACE, Attempts, checked, latest, take_weights, write_inputs
from dagrpo.trainer.run import Report, TrainingRun
from dagrpo.trainer.verl import composition
from dagrpo.trainer.verl.mapping import Files, configuration
from dagrpo.trainer.verl.metrics import step_of
from dagrpo.utils.console import say
from dagrpo.utils.files import remove


def train_with_verl(run: TrainingRun, settings: Mapping[str, Any], report: Report) -> None:
    """Train to the last step and write the outputs. Raises UserError if verl refuses, TransientError if it dies or hangs."""
    folder = run.state.resolve()
    python = run.runtime.backend.python or sys.executable
    checkpoints = folder / "checkpoints"
    found = _check(python, configuration(run, settings, run.seed, files_of(run, folder)), folder)
    run.facts["verl"] = {"version": found["verl"], "draws": found["draws"]}
    finished = latest(checkpoints)
    planned = folder / PLANNED if found["draws"] else None
    comparison = Comparison(planned, folder / DRAWS, run.training.samples_per_prompt, finished)

    def compared(step: int, metrics: Metrics) -> None:
        comparison.require(step)
        report(step, metrics)

    attempts = Attempts(folder, step_of)
    rows = attempts.metrics(finished)
    if finished < run.training.steps:
        _require_same_processes(checkpoints, finished, run.runtime.training.processes)
        try:
            rows = _program(python, folder, attempts.new(), run).run(compared, rows)
        except TransientError:
            comparison.require_graded()
            raise
    else:
        for step, row in enumerate(rows, start=1):
            compared(step, row)
    finished = latest(checkpoints)
    if finished != run.training.steps:
        raise TransientError(
            f"verl ended after the checkpoint of step {finished} of {run.training.steps}: see {run.server_log}."
        )
    weights = checkpoints / f"global_step_{finished}" / "actor" / HUGGINGFACE
    take_weights(run, open_as(HUGGINGFACE, weights), weights)
    write_tables(run, rows[:finished])
    if not run.runtime.training.keep_states:
        remove(checkpoints)


def files_of(run: TrainingRun, folder: Path) -> Files:
    """Write what verl reads, and return the files and folders of the run."""
    inputs = write_inputs(run, folder)
    return Files(model=inputs.model, rows=inputs.rows, grading=inputs.grading, checkpoints=folder / "checkpoints")


def _check(python: str, keys: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Check the configuration by verl's own code, and return what it has found. Raises UserError with its reason."""
    overrides = [override(name, value) for name, value in keys.items()]
    files = {"configuration": str(folder / f"{CONFIGURATION}.yaml"), "planned": str(folder / PLANNED)}
    found = checked(python, composition.__file__, {"overrides": overrides, **files}, folder, "verl")
    draws = f"prompts {found['draws'][:12]}" if found["draws"] else "prompts not known before: they depend on rewards"
    say(f"verl {found['verl']}: configuration valid, {found['rows']} rows, {draws}")
    return found


PLANNED = "planned.jsonl"  # the rows that each step will draw
CONFIGURATION = "verl"  # name of the file with the whole configuration, without its suffix
NEW_KEYS = ("reward.reward_kwargs.", "actor_rollout_ref.model.override_config.")  # of which verl's schema is open


def override(name: str, value: Any) -> str:
    """Return a key and its value as Hydra's override grammar has them: `++` sets a key that verl may not have."""
    sign = "++" if name.startswith(NEW_KEYS) else ""
    return f"{sign}{name}={_spelled(value)}"


def _spelled(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, Sequence):
        return f"[{','.join(map(_spelled, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}: {_spelled(each)}" for name, each in value.items()) + "}"
    return json.dumps(value)


def _program(python: str, folder: Path, attempt: Path, run: TrainingRun) -> Program:
    command = [python, "-m", "verl.trainer.main_ppo", f"--config-path={folder}", f"--config-name={CONFIGURATION}"]
    quiet = [f"hydra.run.dir={folder}", "hydra.output_subdir=null"]
    return Program(
        command=[*command, *quiet],
        metrics=attempt,
        log=run.server_log,
        environment={**os.environ, "VERL_FILE_LOGGER_PATH": str(attempt)},
        read=step_of,
        silent_seconds=60 * run.runtime.backend.silent_minutes,
    )


def _require_same_processes(checkpoints: Path, finished: int, processes: int) -> None:
    if not finished:
        return
    found = next((checkpoints / f"global_step_{finished}" / "actor").glob("model_world_size_*_rank_0.pt"), None)
    before = int(found.name.split("_")[3]) if found else processes
    if before != processes:
        raise UserError(
            f"verl has saved the state of step {finished} with {before} processes, and resumes with as many alone: set "
            f"runtime.training.processes to {before}."
        )
