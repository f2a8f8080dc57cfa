"""Files of a run by another project's trainer, from inputs to weights."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa

from dagrpo.checkpoints.convert import HUGGINGFACE, write_as
from dagrpo.checkpoints.source import open_checkpoint
from dagrpo.checkpoints.tensors import Tensors
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.errors import TransientError, UserError
from dagrpo.core.experiment import tasks_among
from dagrpo.core.trajectory import Prompt
from dagrpo.models.pictures import processor_of
from dagrpo.rollout.prompts import PromptRenderer
from dagrpo.trainer.backend_files import SHARD_BYTES, Metrics, take_weights, write_tables
from dagrpo.trainer.run import Report, TrainingRun
from dagrpo.trainer.sampling.prompt_sampler import PromptSampler
from dagrpo.trainer.sampling.training_prompts import read_training_prompts
from dagrpo.utils.files import read_json, remove, write_json
from dagrpo.utils.tables import read_parquet, write_parquet
from dagrpo_foreign.nodes import Nodes

LATEST = "latest_checkpointed_iteration.txt"  # of verl and Megatron-LM
CHECK_SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Inputs of a trainer in another environment."""

    model: Path  # the initial checkpoint in the trainer's format
    rows: Path  # parquet with the rows of `prompts`
    prompts: Sequence[Prompt]


def write_inputs(run: TrainingRun, folder: Path, format: str = HUGGINGFACE) -> Inputs:
    """Write the checkpoint in a format, and the rows to train on. Raises UserError for pictures in another than HUGGINGFACE."""
    model, rows = folder / "initial", folder / "train.parquet"
    folder.mkdir(parents=True, exist_ok=True)
    if not model.exists():
        write_as(format, open_checkpoint(run.initial), model, SHARD_BYTES)
    pictures = processor_of(model)
    if pictures and format != HUGGINGFACE:
        raise UserError(
            "the model takes pictures, and the trainer of training.backend is tried with models of text alone: choose one, or train with "
            "training.backend: {name: fsdp}."
        )
    renderer = PromptRenderer(load_tokenizer(model), run.rollout, pictures)
    prompts = read_training_prompts([*run.train_splits.values()], renderer, run.training, run.shares)
    indices = [prompt.index for prompt in prompts]
    write_parquet(
        rows, _numbered(pa.concat_tables(map(read_parquet, run.train_splits.values())).take(indices), indices)
    )
    return Inputs(model=model, rows=rows, prompts=prompts)


def _numbered(rows: pa.Table, indices: Sequence[int]) -> pa.Table:
    """Return rows with other extra_info.index, by which a trainer names them: in a data set each task begins at 0."""
    info = rows["extra_info"].combine_chunks()
    columns = [pa.array(indices, each.type) if each.name == "index" else info.field(each.name) for each in info.type]
    place = rows.column_names.index("extra_info")
    return rows.set_column(place, rows.field(place), pa.StructArray.from_arrays(columns, fields=list(info.type)))


def drawn_prompts(run: TrainingRun, prompts: Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts of all steps in the order in which our own trainer draws them."""
    sampler, steps = PromptSampler(prompts, run.training, run.seed, shares=run.shares), range(run.training.steps)
    return [sampled.prompt for step in steps for sampled in sampler.draw(sampler.due(step), step)]


def run_check(run: TrainingRun, program: str, job: Mapping[str, Any], folder: Path, trainer: str) -> dict[str, Any]:
    """Return the findings of a program that checks a job by the trainer's own code. Raises UserError with its reason."""
    try:
        found = reply_of(python_of(run), program, job, folder, seconds=CHECK_SECONDS)
    except TimeoutError as error:
        raise UserError(
            f"the check by {trainer}'s own code {error}: try again on a machine with less load, or correct runtime.backend.python."
        ) from None
    if "error" in found:
        raise UserError(
            f"{trainer} refuses this run: {found['error']}. Correct the parameters, or runtime.backend.python, the Python of an "
            f"environment with {trainer} (docs/backends.md)."
        )
    return found


def reply_of(
    python: str,
    program: str,
    job: Mapping[str, Any],
    folder: Path,
    *,
    name: str = "check",
    seconds: float,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the reply of a program, which `python` runs with the path of the job, whose `reply` names the file for it.

    `name`: of these files and of the log. Raises UserError if the program cannot be run, TimeoutError with what to say of it if it has
    not ended in time.
    """
    path, reply, log = folder / f"{name}.json", folder / f"{name}.reply.json", folder / f"{name}.log"
    reply.unlink(missing_ok=True)
    write_json(path, {**job, "reply": str(reply)})
    command = [python, program, str(path)]
    with log.open("wb") as output:
        try:
            done = subprocess.run(command, stdout=output, stderr=output, timeout=seconds, check=False, env=environment)
        except OSError as error:
            raise UserError(f"runtime.backend.python is {python}, which cannot be run ({error}): correct it.") from None
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"has not ended within {seconds / 60:g} minutes, see {log}") from None
    if reply.is_file():
        return dict(read_json(reply))
    return {"error": f"its check ended with exit code {done.returncode}, see {log}"}


def python_of(run: TrainingRun) -> str:
    """Return the Python of the trainer's environment."""
    return run.runtime.backend.python or sys.executable


def own_module(module: ModuleType, job: Path) -> tuple[str, ...]:
    """Return the command by which a trainer runs a module of ours with a job: by our Python, with our import path."""
    paths = f"PYTHONPATH={os.pathsep.join(filter(None, sys.path))}"
    return ("/usr/bin/env", paths, sys.executable, "-P", "-m", module.__name__, str(job))


@dataclass(frozen=True, slots=True)
class Attempts:
    """Files of metrics in a folder, one for each start of the trainer."""

    folder: Path
    read: Callable[[Any], tuple[int, Metrics]]  # step and metrics of a line

    def new(self) -> Path:
        """Return the file of a new attempt, which is empty."""
        path = self.folder / f"attempt_{len(self._files()) + 1:03d}.jsonl"
        path.write_bytes(b"")
        return path

    def metrics(self, finished: int) -> list[Metrics]:
        """Return the metrics of the finished steps, of each the last attempt's; none of one that ended between checkpoint and line."""
        lines = [line for path in self._files() for line in path.read_text().splitlines(keepends=True)]
        rows = dict(self.read(json.loads(line)) for line in lines if line.endswith("\n"))
        return [rows.get(step, {}) for step in range(1, finished + 1)]

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("attempt_*.jsonl"))


def read_line(line: Mapping[str, Any], *, same: Mapping[str, str], trainer: str) -> tuple[int, Metrics]:
    """Return the step and the metrics of a line `{"step": 1, "data": {...}}`: numbers alone, below `trainer`/ what `same` does not name.

    Metrics of tasks are ours already. A null is NaN, which JSON does not have.
    """
    data = {name: math.nan if value is None else value for name, value in line["data"].items()}
    numbers = {name: value for name, value in data.items() if isinstance(value, int | float)}
    ours = {name: name for name in numbers if tasks_among([name])}
    return int(line["step"]), {
        ({**ours, **same}).get(name, f"{trainer}/{name}"): float(n) for name, n in numbers.items()
    }


def latest(checkpoints: Path) -> int:
    """Return the number of the last whole checkpoint, or 0.

    Both trainers empty the tracker before they name a checkpoint in it, and cannot read an empty one: it is written again.
    """
    tracker = checkpoints / LATEST
    if tracker.is_file() and not tracker.read_text().strip():
        tracker.write_text(str(max(int(folder.name.rpartition("_")[2]) for folder in checkpoints.glob("*_*[0-9]"))))
    return int(tracker.read_text()) if tracker.is_file() else 0


def train_missing_steps(
    run: TrainingRun,
    nodes: Nodes,
    attempts: Attempts,
    finished: int,
    report: Report,
    train: Callable[[list[Metrics]], list[Metrics]],
) -> list[Metrics]:
    """Return the metrics of all steps: `train` makes those after the `finished` ones, whose metrics it gets, if any are left."""
    rows = attempts.metrics(finished)
    if finished < run.training.steps:
        return train(rows)
    nodes.dismiss()
    for step, row in enumerate(rows, start=1):
        report(step, row)
    return rows


def require_finished(run: TrainingRun, finished: int, trainer: str) -> None:
    """Raise TransientError if a trainer has ended before the checkpoint of the last step."""
    if finished != run.training.steps:
        raise TransientError(
            f"{trainer} ended after the checkpoint of step {finished} of {run.training.steps}: see {run.server_log}."
        )


def take_outputs(run: TrainingRun, trained: Tensors, folder: Path, rows: Sequence[Metrics], checkpoints: Path) -> None:
    """Write the outputs of a finished run, of which `trained` is in `folder`, and remove its checkpoints unless they are kept."""
    take_weights(run, trained, folder)
    write_tables(run, rows)
    if not run.runtime.training.keep_states:
        remove(checkpoints)
