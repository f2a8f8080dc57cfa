"""Command `dagrpo train`: one half of training steps, to locate faults."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dagrpo.cli.shared import PARAMS, SeedToTrain
from dagrpo.core.errors import UserError
from dagrpo.pipeline.record import STATES
from dagrpo.utils.provenance import TOPS
from dagrpo_replay.command import STEPS, restart_portably, steps_of

if TYPE_CHECKING:
    import pyarrow as pa

    from dagrpo.config.schema import Params
    from dagrpo.trainer.run import TrainingRun

Figures = Iterator[tuple[int, dict[str, float]]]  # (step, from 1; its figures to print)
STEP = re.compile(r"step_([0-9]{5,})\.parquet")


def train(
    to: Annotated[Path, typer.Option(help="new folder of your own for the outputs")],
    rollouts_only: Annotated[bool, typer.Option("--rollouts-only", help="sample and grade, without an update")] = False,
    from_rollouts: Annotated[
        Path | None, typer.Option(help="update from this file, or folder of step_00001.parquet ..., without an engine")
    ] = None,
    steps: Annotated[
        str | None, typer.Option(help=f"{STEPS}; by default the next one, or all in --from-rollouts")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="saved state to start from; by default the initial checkpoint")
    ] = None,
    seed: SeedToTrain = None,
) -> None:
    """Run one half of training steps of params.yaml, outside of the DAG. Whole steps are run by `snakemake --cores all target`."""
    from dagrpo.config.schema import read_params
    from dagrpo.pipeline.declaration import threads_of
    from dagrpo.pipeline.stages.train import STAGE
    from dagrpo.utils.machine import fix_threads
    from dagrpo.utils.portable import compute_portably

    if rollouts_only == (from_rollouts is not None):
        raise UserError(
            "Say which half: --rollouts-only or --from-rollouts. Whole steps are the stage train: `snakemake --cores all target`."
        )
    numbers = None if steps is None else steps_of(steps)
    require_own_folder(to)
    params = read_params(PARAMS)
    restart_portably(params.runtime.portable_arithmetic)
    run = training_run(params, seed, to)
    tables = None if from_rollouts is None else tables_in(from_rollouts, numbers)
    threads = threads_of(STAGE, run.runtime)
    fix_threads(threads)
    compute_portably(params.runtime.portable_arithmetic)

    from dagrpo.trainer.state.states import named
    from dagrpo.utils.determinism import compute_deterministically, explained
    from dagrpo.utils.distributed import process_group
    from dagrpo_replay.half_steps import RolloutHalf, update_from  # torch, with as many threads

    compute_deterministically(run.rollout.deterministic)
    start = None if state is None else named(state)
    with explained(), process_group(threads) as world:
        if tables is None:
            folder = run.rollouts.parent
            following = [1 if start is None else start.step + 1]
            made = RolloutHalf(run, world, start).write(numbers or following, folder)
            _show(((step, describe_rollouts(table)) for step, table in made), "rollouts", folder)
        else:
            _show(update_from(run, tables, start, world), "updates", run.metrics.parent)


def describe_rollouts(table: "pa.Table") -> dict[str, float]:
    """Return means over a step's attempts without discarded ones, and the distance between engine and trainer."""
    import pyarrow.compute as pc

    from dagrpo.rollout.table import without_discarded

    table = without_discarded(table)
    differences = pc.abs(pc.list_flatten(table["logprob_differences"]))
    figures = {
        "reward/mean": pc.mean(table["reward"]).as_py(),
        "reward/accuracy": pc.mean(pc.equal(table["verdict"], "right").cast("float64")).as_py(),
        "rollout/length_mean": pc.mean(table["completion_tokens"]).as_py(),
    }
    if not len(differences):  # no attempt was learned from
        return figures
    return figures | {
        "policy/logprob_difference_mean": pc.mean(differences).as_py(),
        "policy/logprob_difference_max": pc.max(differences).as_py(),
    }


def _show(figures: Figures, what: str, folder: Path) -> None:
    for step, values in figures:
        print(f"step {step}: " + ", ".join(f"{name} {value:.6g}" for name, value in values.items()), flush=True)
    print(f"The {what} are in {folder}.")


def training_run(params: "Params", seed: int | None, folder: Path) -> "TrainingRun":
    """Return the train stage of params.yaml with the user's folder as output. Raises UserError, which names a missing input."""
    from dagrpo.algorithms.teacher_config import TEACHER
    from dagrpo.pipeline.declaration import rated_splits
    from dagrpo.trainer.run import TrainingRun, files_in

    experiment = params.experiment
    chosen = experiment.seeds[0] if seed is None else seed
    results = Path("results", experiment.name)
    splits = rated_splits(experiment.train, results)
    run = TrainingRun(
        initial=results / "runs" / f"seed_{chosen}" / "initial",
        train_splits=splits,
        shares=experiment.shares,
        passages=tuple(Path("data", experiment.name, task, "passages.parquet") for task in splits),
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
    for path in (run.initial / "manifest.json", *run.train_splits.values()):
        if not path.is_file():
            raise UserError(
                f"{path} is missing, with which training starts: make it with `snakemake --cores all {path}`."
            )
    return run


def require_own_folder(folder: Path) -> None:
    """Raise UserError for a folder that stages write to, or that is not empty."""
    parents = [top for top in (*TOPS, str(STATES)) if folder.resolve().is_relative_to(Path(top).resolve())]
    if parents:
        raise UserError(f"--to {folder} is below {parents[0]}/, where stages write: name a folder of your own.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--to {folder} already exists: name a new folder, or delete it.")


def tables_in(path: Path, steps: Sequence[int] | None) -> dict[int, Path]:
    """Return the rollouts of the requested steps, or of all, by step, ascending. `path`: a file, or a folder of them.

    Raises UserError if there is no table, or one is missing.
    """
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    by_step = {int(match[1]): path for path in files if path.is_file() and (match := STEP.fullmatch(path.name))}
    if not by_step:
        raise UserError(
            f"--from-rollouts {path} has no rollouts: name a file step_00001.parquet, or a folder of such files."
        )
    missing = [step for step in steps or () if step not in by_step]
    if missing:
        raise UserError(
            f"{path} has no rollouts of step {missing[0]}: it has those of {', '.join(map(str, sorted(by_step)))}."
        )
    return {step: by_step[step] for step in sorted(steps or by_step)}
