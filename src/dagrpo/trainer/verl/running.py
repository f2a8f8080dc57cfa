"""Run of verl: files, checks, start, checkpoint."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dagrpo.checkpoints.convert import write_as
from dagrpo.checkpoints.source import open_as, open_checkpoint
from dagrpo.checkpoints.store import save_weights
from dagrpo.core.errors import TransientError, UserError
from dagrpo.core.trajectory import Prompt
from dagrpo.trainer.backend_files import SHARD_BYTES, Metrics, Program, write_job, write_tables
from dagrpo.trainer.run import Report, TrainingRun
from dagrpo.trainer.verl import attempts, composition
from dagrpo.trainer.verl.mapping import Files, configuration, has_several_turns
from dagrpo.trainer.verl.metrics import step_of
from dagrpo.utils.console import say
from dagrpo.utils.files import read_json, remove, write_json
from dagrpo.utils.tables import read_parquet, write_parquet

HUGGINGFACE = "huggingface"
LATEST = "latest_checkpointed_iteration.txt"
COLUMNS = ["data_source", "prompt", "reward_model", "extra_info"]  # of a row, that verl reads
CHECK_SECONDS = 900.0
FINDINGS = "check.reply.json"


def train_with_verl(run: TrainingRun, settings: Mapping[str, Any], report: Report) -> None:
    """Train to the last step and write the outputs. Raises UserError if verl refuses, TransientError if it dies or hangs."""
    folder = run.state.resolve()
    python = run.runtime.backend.python or sys.executable
    checkpoints = folder / "checkpoints"
    prompts = attempts.prompts_of_run(run.initial, run.train_split, run.rollout, run.training)
    several_turns = has_several_turns(run.rollout, any(prompt.tools or prompt.row.interaction for prompt in prompts))
    files = _written(run, prompts, folder, checkpoints)
    keys = configuration(run, settings, run.seed, files, several_turns=several_turns)
    _check(python, keys, folder)
    finished = _finished_steps(checkpoints)
    if finished < run.training.steps:
        _require_same_processes(checkpoints, finished, run.runtime.training.processes)
    before = _metrics_before(folder, finished, several_turns=several_turns)
    attempt = folder / f"attempt_{len(_attempts(folder)) + 1:03d}.jsonl"
    rows = before
    if finished < run.training.steps:
        rows = _program(python, folder, attempt, run, several_turns=several_turns).run(report, before)
    else:
        for step, row in enumerate(before, start=1):
            report(step, row)
    finished = _finished_steps(checkpoints)
    if finished != run.training.steps:
        raise TransientError(
            f"verl ended after the checkpoint of step {finished} of {run.training.steps}: see {run.server_log}."
        )
    _take(run, checkpoints / f"global_step_{finished}")
    write_tables(run, rows[:finished])
    if not run.runtime.training.keep_states:
        remove(checkpoints)


def _written(run: TrainingRun, prompts: Sequence[Prompt], folder: Path, checkpoints: Path) -> Files:
    """Write what verl reads: the checkpoint in the Hugging Face layout, and the rows to train on; and what the attempts need."""
    model, rows, job = folder / "initial", folder / "train.parquet", folder / "attempts.json"
    folder.mkdir(parents=True, exist_ok=True)
    if not model.exists():
        write_as(HUGGINGFACE, open_checkpoint(run.initial), model, SHARD_BYTES)
    table = read_parquet(run.train_split).select(COLUMNS)
    write_parquet(rows, table.take([prompt.index for prompt in prompts]))
    write_job(run, job)
    command = (sys.executable, "-P", "-m", attempts.__name__, str(job))
    return Files(model=model, rows=rows, attempts=command, checkpoints=checkpoints)


def _check(python: str, keys: Mapping[str, Any], folder: Path) -> None:
    """Check the configuration by verl's own code. Raises UserError with its reason."""
    job, reply, configured = folder / "check.json", folder / FINDINGS, folder / f"{CONFIGURATION}.yaml"
    reply.unlink(missing_ok=True)
    overrides = [override(name, value) for name, value in keys.items()]
    write_json(job, {"overrides": overrides, "configuration": str(configured), "reply": str(reply)})
    command = [python, composition.__file__, str(job)]
    log = folder / "check.log"
    with log.open("wb") as output:
        try:
            code = subprocess.run(command, stdout=output, stderr=output, timeout=CHECK_SECONDS, check=False).returncode
        except OSError as error:
            raise UserError(f"runtime.backend.python is {python}, which cannot be run ({error}): correct it.") from None
    found = read_json(reply) if reply.is_file() else {"error": f"its check ended with exit code {code}, see {log}"}
    if "error" in found:
        raise UserError(
            f"verl refuses this run: {found['error']}. Correct the parameters, or runtime.backend.python, the Python of an "
            "environment with verl (docs/backends.md)."
        )
    say(f"verl {found['verl']}: configuration valid, {found['rows']} rows, order {found['order'][:12]}")


CONFIGURATION = "verl"  # name of the file with the whole configuration, without its suffix
NEW_KEYS = ("actor_rollout_ref.rollout.custom.",)  # of which verl's schema is open


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


def _program(python: str, folder: Path, attempt: Path, run: TrainingRun, *, several_turns: bool) -> Program:
    attempt.write_bytes(b"")
    (folder / attempts.STOP).unlink(missing_ok=True)
    command = [python, "-m", "verl.trainer.main_ppo", f"--config-path={folder}", f"--config-name={CONFIGURATION}"]
    quiet = [f"hydra.run.dir={folder}", "hydra.output_subdir=null"]
    return Program(
        command=[*command, *quiet],
        metrics=attempt,
        log=run.server_log,
        environment={**os.environ, "VERL_FILE_LOGGER_PATH": str(attempt)},
        stop=folder / attempts.STOP,
        read=partial(step_of, several_turns=several_turns),
        silent_seconds=60 * run.runtime.backend.silent_minutes,
    )


def _attempts(folder: Path) -> list[Path]:
    return sorted(folder.glob("attempt_*.jsonl"))


def _metrics_before(folder: Path, finished: int, *, several_turns: bool) -> list[Metrics]:
    """Return the metrics of the finished steps: of each the last attempt that took it."""
    rows: dict[int, Metrics] = {}
    for path in _attempts(folder):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                step, metrics = step_of(json.loads(line), several_turns=several_turns)
                rows[step] = metrics
    missing = sorted(set(range(1, finished + 1)) - rows.keys())
    if missing:
        raise UserError(
            f"{folder} has no metrics of step {missing[0]}, which verl has finished: remove the folder to train again."
        )
    return [rows[step] for step in range(1, finished + 1)]


def _finished_steps(checkpoints: Path) -> int:
    latest = checkpoints / LATEST
    return int(latest.read_text()) if latest.is_file() else 0


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


def _take(run: TrainingRun, step: Path) -> None:
    """Write the weights that verl has saved as the policy: files and format of the initial checkpoint, and its dtype."""
    trained = open_as(HUGGINGFACE, step / "actor" / HUGGINGFACE)
    initial = open_checkpoint(run.initial).tensors
    names = {name: spec.shape for name, spec in trained.specs.items()}
    if names != {name: spec.shape for name, spec in initial.specs.items()}:
        odd = sorted(set(names) ^ set(initial.specs)) or sorted(names)
        raise UserError(f"verl has saved other tensors than the initial checkpoint has, such as {odd[0]}: see {step}.")
    floating = {spec.dtype for spec in initial.specs.values() if spec.dtype.is_floating_point}
    save_weights(trained, next(iter(floating), torch.float32), run.initial, run.policy)
