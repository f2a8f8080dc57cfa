"""Second half of steps: update the policy from existing rollouts.

No engine is opened.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from dagrpo.cli.replay.batch import read_step
from dagrpo.cli.replay.pictures import pictures_of
from dagrpo.cli.replay.policy import UpdatedPolicy
from dagrpo.core.errors import UserError
from dagrpo.trainer import state
from dagrpo.trainer.checks.finite import SKIPPED
from dagrpo.trainer.history import update_metrics, with_plugins
from dagrpo.trainer.run import TrainingRun, step_file
from dagrpo.trainer.sync.digest_table import FILE, StepDigests, digest_table
from dagrpo.utils.distributed import World
from dagrpo.utils.tables import write_parquet


def update_from(
    run: TrainingRun, tables: Mapping[int, Path], start: state.SavedState | None, world: World
) -> Iterator[tuple[int, dict[str, float]]]:
    """Update the policy from each step's table, and yield its figures. At the end, write state, figures and digests.

    The advantages are those in the tables. `start`: the state to resume from; None: the initial checkpoint. Raises UserError if
    a table is of another step, or of another policy's rollouts.
    """
    policy = UpdatedPolicy(run, world, activation_checkpointing=run.runtime.training.activation_checkpointing)
    pictures = pictures_of(run.initial, run.train_split)
    if start is not None:
        policy.load(start)
    budget, digests = policy.budget(run.runtime.training), dict[int, StepDigests]()
    rows: list[dict[str, float]] = []
    for step, table in tables.items():
        given = read_step(table, run.training, pictures)
        if given.step != step:
            raise UserError(f"{table} has the rollouts of step {given.step}: name it {step_file(given.step)}.")
        stats = policy.update(step, given.batch, budget)
        digests[step] = stats.digests
        own = update_metrics(stats, given.batch.rollout_logprobs.tolist()) | {SKIPPED: float(stats.skipped)}
        rows.append(with_plugins(own, stats))
        yield step, rows[-1]
    policy.save(run.state, max(tables))
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    write_parquet(run.metrics, pa.table({"step": list(tables), **columns}))
    write_parquet(run.metrics.with_name(FILE), digest_table(digests))
