"""Inputs (the train stage's) and output folder of half steps."""

import re
from collections.abc import Sequence
from pathlib import Path

from dagrpo.algorithms.teacher_config import TEACHER
from dagrpo.config.schema import Params
from dagrpo.core.errors import UserError
from dagrpo.pipeline.record import STATES
from dagrpo.trainer.run import TrainingRun, files_in
from dagrpo.utils.provenance import TOPS

STEP = re.compile(r"step_([0-9]{5,})\.parquet")


def training_run(params: Params, seed: int | None, folder: Path) -> TrainingRun:
    """Return the train stage of params.yaml with the user's folder as output. Raises UserError, which names a missing input."""
    experiment = params.experiment
    chosen = experiment.seeds[0] if seed is None else seed
    own, results = Path("data", experiment.name, experiment.train), Path("results", experiment.name)
    run = TrainingRun(
        initial=results / "runs" / f"seed_{chosen}" / "initial",
        train_split=results / "difficulty" / "train.parquet",
        passages=own / "passages.parquet",
        teacher=Path("models", experiment.name, TEACHER),
        seed=chosen,
        rollout=params.rollout,
        reward=params.reward,
        algorithm=params.algorithm,
        # Half a step evaluates nothing, and samples nothing ahead.
        training=params.training.model_copy(update={"evaluate_every": 0, "staleness": 0}),
        runtime=params.runtime,
        **files_in(folder),
    )
    for path in (run.initial / "manifest.json", run.train_split):
        if not path.is_file():
            raise UserError(
                f"{path} is missing, with which training starts: make it with `snakemake --cores all {path}`."
            )
    return run


def require_own_folder(folder: Path) -> None:
    """Raise UserError for a folder that stages write to, or that is not empty."""
    taken = [top for top in (*TOPS, str(STATES)) if folder.resolve().is_relative_to(Path(top).resolve())]
    if taken:
        raise UserError(f"--to {folder} is below {taken[0]}/, where stages write: name a folder of your own.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--to {folder} is there already: name a new folder, or delete it.")


def tables(given: Path, steps: Sequence[int] | None) -> dict[int, Path]:
    """Return the rollouts of the requested steps, or of all, by step, ascending. `given`: a file, or a folder of them.

    Raises UserError if there is no table, or one is missing.
    """
    files = sorted(given.glob("*.parquet")) if given.is_dir() else [given]
    found = {int(match[1]): path for path in files if path.is_file() and (match := STEP.fullmatch(path.name))}
    if not found:
        raise UserError(
            f"--from-rollouts {given} has no rollouts: name a file step_00001.parquet, or a folder of such files."
        )
    missing = [step for step in steps or () if step not in found]
    if missing:
        raise UserError(
            f"{given} has no rollouts of step {missing[0]}: it has those of {', '.join(map(str, sorted(found)))}."
        )
    return {step: found[step] for step in sorted(steps or found)}
