"""Command `dagrpo train`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dagrpo.cli.replay.command import STEPS, steps_of
from dagrpo.core.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

    from dagrpo.trainer.run import TrainingRun
    from dagrpo.trainer.state import SavedState

EPILOG = "Example: `dagrpo train --rollouts-only --to half_a_step`, then `dagrpo train --from-rollouts half_a_step --to the_other`"
PARAMS = Path("params.yaml")
Figures = Iterator[tuple[int, dict[str, float]]]  # (step, from 1; its figures to print)


def train(
    to: Annotated[Path, typer.Option(help="a new folder of your own for what is written")],
    rollouts_only: Annotated[bool, typer.Option("--rollouts-only", help="sample and grade; no update")] = False,
    from_rollouts: Annotated[
        Path | None, typer.Option(help="update from this file or folder of step_00001.parquet ...; no engine")
    ] = None,
    steps: Annotated[str | None, typer.Option(help=f"{STEPS}; the next one, or all that are given")] = None,
    state: Annotated[Path | None, typer.Option(help="a saved state to start from, not the initial checkpoint")] = None,
    seed: Annotated[int | None, typer.Option(help="one of experiment.seeds; the first if not given")] = None,
) -> None:
    """Take one half of training steps of params.yaml, outside of the DAG. Training itself is `snakemake --cores all target`."""
    from dagrpo.cli.half_steps import place
    from dagrpo.config.schema import read_params
    from dagrpo.pipeline.declaration import threads_of
    from dagrpo.pipeline.stages.train import STAGE
    from dagrpo.utils.threads import fix_threads

    if rollouts_only == (from_rollouts is not None):
        raise UserError(
            "Say which half: --rollouts-only or --from-rollouts. Whole steps are the stage train: `snakemake --cores all target`."
        )
    asked = None if steps is None else steps_of(steps)
    place.require_own_folder(to)
    run = place.training_run(read_params(PARAMS), seed, to)
    tables = None if from_rollouts is None else place.tables(from_rollouts, asked)
    threads = threads_of(STAGE, run.runtime)
    fix_threads(threads)
    _work(run, tables, asked, state, threads)


def _work(
    run: "TrainingRun", tables: dict[int, Path] | None, asked: Sequence[int] | None, state: Path | None, threads: int
) -> None:
    from dagrpo.cli.half_steps.rollouts import RolloutHalf
    from dagrpo.cli.half_steps.updates import update_from
    from dagrpo.trainer.state import named
    from dagrpo.utils.determinism import compute_deterministically, explained
    from dagrpo.utils.distributed import process_group

    compute_deterministically(run.rollout.deterministic)
    start = None if state is None else named(state)
    with explained(), process_group(threads) as world:
        if tables is None:
            folder = run.rollouts.parent
            tables_of_steps = RolloutHalf(run, world, start).write(asked or [_next(start)], folder)
            _show(((step, of_rollouts(table)) for step, table in tables_of_steps), "rollouts", folder)
        else:
            _show(update_from(run, tables, start, world), "updates", run.metrics.parent)


def _next(start: "SavedState | None") -> int:
    return 1 if start is None else start.step + 1


def of_rollouts(table: "pa.Table") -> dict[str, float]:
    """Return means over a step's attempts without discarded ones, and the distance between engine and trainer."""
    import pyarrow.compute as pc

    from dagrpo.rollout.table import without_discarded

    table = without_discarded(table)
    engine, trainer = (pc.list_flatten(table[name]) for name in ("rollout_logprobs", "trainer_logprobs"))
    figures = {
        "reward/mean": pc.mean(table["reward"]).as_py(),
        "reward/accuracy": pc.mean(pc.equal(table["verdict"], "right").cast("float64")).as_py(),
        "rollout/length_mean": pc.mean(pc.list_value_length(table["completion_ids"])).as_py(),
    }
    if len(engine) != len(trainer):  # some attempts were left out of the trainer's
        return figures
    difference = pc.abs(pc.subtract(engine, trainer))
    return figures | {
        "policy/logprob_difference_mean": pc.mean(difference).as_py(),
        "policy/logprob_difference_max": pc.max(difference).as_py(),
    }


def _show(figures: Figures, what: str, folder: Path) -> None:
    """Print each step's figures as they arrive."""
    for step, values in figures:
        print(f"step {step}: " + ", ".join(f"{name} {value:.6g}" for name, value in values.items()), flush=True)
    print(f"The {what} are in {folder}.")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog=EPILOG)(train)
