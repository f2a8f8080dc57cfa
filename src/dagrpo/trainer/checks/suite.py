"""Checks of a GRPO run, combined for its loop.

The loop calls one method at each place where something can go wrong. Every rank has a suite, since all of them score the
probe; all other work is done on rank 0.

Which prompts come next follows from the run's seed, the number sampled before, and the retired ones among them
(trainer/sampling/prompt_sampler.py). The records hold the prompts that were really sampled, including discarded ones; both are compared
when a run resumes and when it ends. The number of prompts of a step is taken from its record, as dynamic sampling may add more.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dagrpo.algorithms.config import Algorithm
from dagrpo.algorithms.losses import LOSSES
from dagrpo.checkpoints.tensors import Tensors
from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Prompt
from dagrpo.core.types import EXCLUDED
from dagrpo.engine.interface import RolloutEngine
from dagrpo.trainer.batches.batch import Batch
from dagrpo.trainer.batches.micro_batches import Budget
from dagrpo.trainer.batches.rollouts import CUT_OFF_GROUPS, Rollouts
from dagrpo.trainer.checks.logprob_agreement import OUTSIDE, Probe, compared_in, require_the_policys_rollouts
from dagrpo.trainer.checks.no_signal import NoSignal, SkippedSteps
from dagrpo.trainer.checks.weight_sync import WeightSyncCheck
from dagrpo.trainer.config.checks import Gates
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.model.policy import Policy
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.sampling.prompt_sampler import PromptSampler
from dagrpo.trainer.state.records import Record
from dagrpo.trainer.update.stats import SKIPPED, UpdateStats, finite_or_zero
from dagrpo.utils.distributed import World
from dagrpo.utils.tables import naming_parquet

_UNCHANGED = "unchanged_weights"
Figures = dict[str, float]


class CheckSuite:
    """All checks of a run, called at each stage of a step, in order."""

    def __init__(
        self,
        run: TrainingRun,
        prompts: Sequence[Prompt],
        record: Record,
        *,
        policy: Policy,
        budget: Budget,
        pad_token_id: int,
        world: World,
    ) -> None:
        """Set up the checks. `prompts` are rank 0's, empty elsewhere. `budget`: the update's."""
        gates = run.training.gates
        self._run = run
        self._prompts = prompts
        self._record = record
        self._weight_sync = WeightSyncCheck(gates, run.seed)
        self._probe = Probe(
            gates,
            run.rollout,
            prompts,
            dtype=compared_in(run.rollout, run.training),
            policy=policy,
            budget=budget,
            pad_token_id=pad_token_id,
            state=run.state,
            seed=run.seed,
            world=world,
        )
        self._no_signal = NoSignal(
            _of_what_is_learned(gates, run.algorithm), seed=run.seed, max_new_tokens=run.rollout.max_new_tokens
        )
        self._skipped = SkippedSteps(gates, run.state)
        self._every = gates.every
        self._is_first = True  # of this execution's weight syncs
        self._updated = False  # since the last comparison of digests
        self._sync_figures: dict[str, float] = {}
        self.figures: dict[str, float] = {}  # of the weights that the current step samples from; no part of a result

    @property
    def saved(self) -> dict[str, int]:
        """Return the JSON-serialisable check state that no record holds, on rank 0."""
        return {_UNCHANGED: self._weight_sync.unchanged}

    def restore(self, saved: Mapping[str, int]) -> None:
        """Restore check state from `saved`; {} for a new run."""
        self._weight_sync.unchanged = saved.get(_UNCHANGED, 0)

    def after_sync(self, engine: RolloutEngine, weights: Tensors, finished: int) -> None:
        """Check the engine after rank 0 has loaded the weights of `finished` steps into it."""
        self._sync_figures = {}
        if self._is_due(finished):
            self._sync_figures = self._weight_sync.check(engine, weights, finished, updated=self._updated)
            self._updated = False

    def before_rollouts(self, engine: RolloutEngine | None, step: int) -> None:
        """Check the probe in every rank before `step` (0-based) is sampled; the engine is rank 0's."""
        probed = self._probe.check(engine, step) if self._is_due(step) else {}
        self.figures = self._sync_figures | probed
        self._is_first = False

    def _is_due(self, finished: int) -> bool:
        """Return True if weight checks are due, the same in every rank."""
        return self._is_first or finished % self._every == 0

    def after_update(self, step: int, batch: Batch, stats: UpdateStats, rollouts: Rollouts | None) -> Figures:
        """Check the update of `step` (0-based) on rank 0, which has its rollouts; return the figures, which are part of the result.

        A skipped step is not compared, as its logprobs are not finite: its share is 0.
        """
        if rollouts is None:
            return {}
        self._updated = self._updated or stats.grad_norm > 0
        run, skipped = self._run, {SKIPPED: float(stats.skipped)}
        if stats.skipped:
            return skipped | {OUTSIDE: 0.0}
        return skipped | require_the_policys_rollouts(
            batch,
            stats.logprobs,
            run.training.gates,
            dtype=compared_in(run.rollout, run.training),
            state=run.state,
            step=step + 1,
            staleness=rollouts.staleness or 0,
            is_earlier=rollouts.ages > 0 if rollouts.partial else None,
        )

    def count(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the next step's metrics with the counts over steps; the step may have finished before this execution."""
        self._skipped.count(metrics)
        return self._no_signal.counted(metrics)

    def after_record(self, step: int, rollouts: pa.Table) -> None:
        """Check the counts after `step` (1-based) was recorded, counted and reported."""
        self._skipped.check(step, rollouts)
        self._no_signal.check(step)

    def require_recorded_prompts(self, steps: int) -> None:
        """Check the prompts of `steps` recorded steps, when a run resumes or ends."""
        if self._run.training.gates.consumed_prompts:
            training = self._run.training
            sampler = PromptSampler(self._prompts, training, self._run.seed)
            record = self._record
            require_prompts(record.rollouts, record.prompts, steps, sampler, training, self._cut_off)

    def _cut_off(self, step: int) -> int:
        """Return the number of groups that a recorded step (1-based) has cut off."""
        if not self._run.training.dynamic_sampling.max_aborts:
            return 0
        return int(self._record.metrics(step)[CUT_OFF_GROUPS])


def storable(metrics: Mapping[str, float], stats: UpdateStats) -> dict[str, float]:
    """Return the metrics of a step; if an update was skipped, 0 in place of non-finite ones."""
    return finite_or_zero(metrics) if stats.skipped else dict(metrics)


def _of_what_is_learned(gates: Gates, algorithm: Algorithm) -> Gates:
    """Return the limits, without that of advantages if the loss does not use them, as a teacher's does not."""
    needs_teacher = LOSSES.get(algorithm.loss.name).needs_teacher
    return gates.model_copy(update={"without_advantage": None}) if needs_teacher else gates


OUTCOME = ["correct", "stop_reason", "completion_tokens"]  # of an attempt, which may retire its prompt


def require_prompts(
    rollouts: Callable[[int], Path],
    prompts: Callable[[int], list[int]],
    steps: int,
    sampler: PromptSampler,
    training: Training,
    cut_off: Callable[[int], int] = lambda step: 0,
) -> None:
    """Check the first `steps` records. Raises UserError, which names a wrong step.

    `rollouts` returns the file of a step (1-based), which is read only where its outcomes retire prompts, and `prompts` its attempts' rows.
    `sampler` is the one of a new run; `cut_off` returns how many additional groups a step has sampled and put back.
    """
    for step in range(1, steps + 1):
        path, recorded = rollouts(step), prompts(step)
        planned = _planned(recorded, sampler, training, step, cut_off(step))
        if training.retire_at is not None:
            with naming_parquet(path, "delete the run's state and train again"):
                sampler.retire_rows(recorded, _right(pq.read_table(path, columns=OUTCOME)))
        if recorded != planned:
            raise UserError(
                f"{path} is of {len(recorded)} attempts at rows {_some(recorded)} of the train split, where the seed and the "
                f"steps before say {len(planned)} at rows {_some(planned)}: the run has skipped or repeated prompts. Delete its state "
                f"({path.parent.parent}) and train again, or set training.gates.consumed_prompts to false."
            )


def _planned(recorded: Sequence[int], sampler: PromptSampler, training: Training, step: int, cut_off: int) -> list[int]:
    """Return the expected train split row of each recorded attempt of `step` (1-based).

    The record alone shows which of the sampled groups were cut off: the `cut_off` ones that it lacks. They are put back.
    """
    size, prompts = training.samples_per_prompt, training.prompts_per_step
    if training.dynamic_sampling.is_on:
        prompts = max(prompts, len(recorded) // size)
    sampled = sampler.draw(prompts + cut_off, step - 1)
    rows = [prompt.prompt.index for prompt in sampled]
    if cut_off and len(sampler.put_back(sampled, recorded[::size])) == cut_off:
        rows = [*recorded[::size]]
    return [row for row in rows for _ in range(size)]


def _right(table: pa.Table) -> list[bool | None]:
    """Return the correctness of each attempt; None if nothing could be learned from it."""
    written = pc.greater(table["completion_tokens"], 0)
    learned = pc.and_(written, pc.not_equal(table["stop_reason"], EXCLUDED)).to_pylist()
    return [
        right is True if known else None for right, known in zip(table["correct"].to_pylist(), learned, strict=True)
    ]


def _some(rows: Sequence[int]) -> str:
    distinct = list(dict.fromkeys(rows))
    return ", ".join(map(str, distinct[:5])) + (", ..." if len(distinct) > 5 else "")
