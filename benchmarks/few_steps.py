"""A few steps of training on one server that is there already, from the same start each time: what long_tail.py and overlap.py time."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tests.rollout.problems import task_row
from tests.trainer.lending import lending

from dagrpo.algorithms.config import Algorithm
from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert
from dagrpo.data.schema import to_table
from dagrpo.engine import sglang
from dagrpo.engine.pool import ServerPool
from dagrpo.models.config import Fresh
from dagrpo.models.fresh import make_fresh
from dagrpo.rewards.config import Reward
from dagrpo.rollout.config import Rollout
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.run import TrainingRun, files_in
from dagrpo.trainer.training import train
from dagrpo.utils.distributed import single_process
from dagrpo.utils.tables import write_parquet

Figures = Mapping[str, float]


def inputs_in(folder: Path, model: Path | None, shape: Fresh) -> tuple[Path, Path]:
    """(initial checkpoint, train split). Of a fresh model of this shape, where no folder of a model is named."""
    if model is None:
        model = folder / "model"
        make_fresh(model, shape, torch.float32)
    convert(model, folder / "initial", Checkpoint())
    questions = ["+".join(str((7 * row + term) % 10) for term in range(8)) + "=?" for row in range(64)]
    rows = [task_row(each, index=number) for number, each in enumerate(questions)]
    write_parquet(folder / "train.parquet", to_table(rows))
    return folder / "initial", folder / "train.parquet"


def engine_for(requests: int, tokens: int) -> sglang.Config:
    """One that has room for so many requests at the same time, of so many new tokens each."""
    return sglang.Config(max_running_requests=requests, max_total_tokens=max(32768, requests * (tokens + 64)))


def training_run(
    inputs: tuple[Path, Path],
    folder: Path,
    rollout: Rollout,
    training: Mapping[str, Any],
    runtime: Mapping[str, Any],
) -> TrainingRun:
    """A run in a new folder. `training`, `runtime`: what these two sections say beside what all runs have in common."""
    gates = {"gates": {"truncated": None, "missing_answers": None, "without_advantage": None}}
    # Shorter completions are worth more, so that groups of a fresh model differ.
    components = {"accuracy": {}, "overlong": {"weight": 1.0, "buffer": rollout.max_new_tokens - 1}}
    saved_at_the_end = {"save_every": training["steps"], "keep_states": 0}
    folder.mkdir()
    return TrainingRun(
        initial=inputs[0],
        train_splits={"task": inputs[1]},
        seed=0,
        rollout=rollout,
        reward=Reward.model_validate({"components": components}),
        algorithm=Algorithm(),
        training=Training.model_validate({**training, **gates}),
        runtime=Runtime.model_validate({"training": {**saved_at_the_end, **runtime}}),
        **files_in(folder),
    )


def steps_of(run: TrainingRun, pool: ServerPool) -> list[Figures]:
    """The metrics of each step."""
    reported: list[Figures] = []
    train(run, lambda step, metrics: reported.append(dict(metrics)), single_process(), lending(pool))
    return reported


def seconds_of(step: Figures) -> float:
    """All that a step took."""
    return sum(value for name, value in step.items() if name.startswith("timing/") and name.endswith("_seconds"))


def medians(steps: Sequence[Figures], columns: Callable[[Figures], dict[str, float]]) -> dict[str, float]:
    """Each column's median over the steps."""
    rows = [columns(step) for step in steps]
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}
