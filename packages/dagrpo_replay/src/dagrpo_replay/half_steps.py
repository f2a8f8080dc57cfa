"""The two halves of training steps: rollouts, and updates from them.

The first half samples, grades, and computes advantages; the second opens no engine.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagrpo.core.errors import UserError
from dagrpo.engine import open_engine
from dagrpo.engine.interface import EngineOpener
from dagrpo.rollout.attempts_file import write_attempts
from dagrpo.trainer.batches.rollouts import Rollouts
from dagrpo.trainer.clock import Clock
from dagrpo.trainer.metrics.step import rollout_rows, update_metrics, with_plugins
from dagrpo.trainer.run import TrainingRun, step_file
from dagrpo.trainer.sampling.prompt_sampler import PromptSampler
from dagrpo.trainer.sampling.source import SamplingSource
from dagrpo.trainer.saver import AHEAD, PROMPTS
from dagrpo.trainer.setup import Setup
from dagrpo.trainer.state import states, tensors
from dagrpo.trainer.state.digest_table import FILE, StepDigests, digest_table
from dagrpo.trainer.update.policy_update import PolicyUpdate
from dagrpo.trainer.update.stats import SKIPPED
from dagrpo.utils.distributed import World
from dagrpo.utils.tables import write_parquet
from dagrpo_replay.policy import UpdatedPolicy
from dagrpo_replay.recorded_step import pictures_of, read_step


class RolloutHalf:
    """Steps without updates: every step is sampled from the same weights."""

    def __init__(
        self, run: TrainingRun, world: World, start: states.SavedState | None, opener: EngineOpener = open_engine
    ) -> None:
        """Load the policy of state `start`, whose weights sample; None: the initial checkpoint.

        Raises UserError if the state does not determine the next prompts.
        """
        if start is not None:
            _require_known_prompts(run, start)
        self._setup = Setup(run, world)
        self._opener = opener
        self._start = 0 if start is None else start.step
        self._notes: Mapping[str, Any] = {} if start is None else start.notes
        if start is not None:
            tensors.load(start, self._setup.policy.model, self._setup.optimizer, self._setup.base)

    def write(self, steps: Sequence[int], folder: Path) -> Iterator[tuple[int, pa.Table]]:
        """Write the rollouts of each step (1-based) to the folder; yield each once it is written.

        A step that follows neither the state nor another step samples as if each earlier one had sampled just its batch, and
        retired no prompt.
        """
        update = self._setup.policy_update({})  # its coefficients do not affect rollouts
        with self._setup.open_source(self._opener, self._start, self._notes) as (source, _):
            assert isinstance(source, SamplingSource), "one process samples"
            former = self._start
            for step in steps:
                if step != former + 1:
                    run, saved = self._setup.run, self._notes.get(PROMPTS) if step - 1 == self._start else None
                    source.sampler.prompt_sampler = PromptSampler(
                        self._setup.prompts,
                        run.training,
                        run.seed,
                        shares=run.shares,
                        finished=step - 1,
                        saved=saved,
                    )
                former = step
                table = rows_with_advantages(source.sampler.sample(step - 1, Clock()), update)
                write_attempts(folder / step_file(step), table)
                yield step, table


def rows_with_advantages(rollouts: Rollouts, update: PolicyUpdate) -> pa.Table:
    """Return the table of a step's rollouts with their advantages."""
    before = update.compute_before(rollouts.batch())
    return rollout_rows(replace(rollouts, advantages=update.advantages(rollouts, before)), before.logprobs)


def _require_known_prompts(run: TrainingRun, start: states.SavedState) -> None:
    """Raise UserError if the next step's prompts follow neither from the state nor from the number of its steps."""
    training = run.training
    if start.notes.get(AHEAD):
        raise UserError(
            f"{start.folder} has batches that training.staleness has sampled ahead, so that the prompts of the next step are drawn "
            "already: see them in the rollouts of the run (.state/<run>/rollouts), or start from the initial checkpoint."
        )
    if PROMPTS not in start.notes and (training.dynamic_sampling.is_on or training.retire_at is not None):
        raise UserError(
            f"{start.folder} does not say which prompts its steps have drawn, as no state of --from-rollouts does, and with "
            "training.dynamic_sampling or training.retire_at that does not follow from their number: start from a state of the "
            "run (.state/<run>/step_N)."
        )


def update_from(
    run: TrainingRun, tables: Mapping[int, Path], start: states.SavedState | None, world: World
) -> Iterator[tuple[int, dict[str, float]]]:
    """Update the policy from each step's table, and yield its figures. At the end, write state, figures and digests.

    The advantages are those in the tables. `start`: the state to resume from; None: the initial checkpoint. Raises UserError if
    a table is of another step, or of another policy's rollouts.
    """
    policy = UpdatedPolicy(run, world, activation_checkpointing=run.runtime.training.activation_checkpointing)
    pictures = pictures_of(run.initial, [*run.train_splits.values()])
    if start is not None:
        policy.load(start)
    budget, digests = policy.budget(run.runtime.training), dict[int, StepDigests]()
    rows: list[dict[str, float]] = []
    for step, table in tables.items():
        recorded = read_step(table, run.training, pictures)
        if recorded.step != step:
            raise UserError(f"{table} has the rollouts of step {recorded.step}: name it {step_file(recorded.step)}.")
        stats = policy.update(step, recorded.batch, budget)
        digests[step] = stats.digests
        own = update_metrics(stats, recorded.batch.rollout_logprobs.tolist()) | {SKIPPED: float(stats.skipped)}
        rows.append(with_plugins(own, stats))
        yield step, rows[-1]
    policy.save(run.state, max(tables))
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    write_parquet(run.metrics, pa.table({"step": list(tables), **columns}))
    write_parquet(run.metrics.with_name(FILE), digest_table(digests))
