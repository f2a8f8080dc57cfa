"""Checks of a GRPO run, combined for its loop.

The loop calls one method at each place where something can go wrong. Every rank has a suite, since all of them score the
probe; all other work is done on rank 0.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from dagrpo.algorithms.config import Algorithm
from dagrpo.algorithms.losses import LOSSES
from dagrpo.checkpoints.tensors import Tensors
from dagrpo.core.trajectory import Prompt
from dagrpo.engine.interface import RolloutEngine
from dagrpo.trainer.batches.batch import Batch
from dagrpo.trainer.batches.micro_batches import Budget
from dagrpo.trainer.batches.rollouts import Rollouts
from dagrpo.trainer.checks.logprob_agreement import OUTSIDE, Probe, compared_in, require_the_policys_rollouts
from dagrpo.trainer.checks.no_signal import NoSignal, SkippedSteps
from dagrpo.trainer.checks.weight_sync import WeightSyncCheck
from dagrpo.trainer.config.checks import Gates
from dagrpo.trainer.model.policy import Policy
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.update.stats import SKIPPED, UpdateStats, finite_or_zero
from dagrpo.utils.distributed import World

_UNCHANGED = "unchanged_weights"
Figures = dict[str, float]


class CheckSuite:
    """All checks of a run, called at each stage of a step, in order."""

    def __init__(
        self,
        run: TrainingRun,
        prompts: Sequence[Prompt],
        *,
        policy: Policy,
        budget: Budget,
        pad_token_id: int,
        world: World,
    ) -> None:
        """Set up the checks. `prompts` are rank 0's, empty elsewhere. `budget`: the update's."""
        gates = run.training.gates
        self._run = run
        self._weight_sync = WeightSyncCheck(gates, run.seed)
        self._probe = Probe(
            params=gates,
            rollout=run.rollout,
            prompts=prompts,
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
        return self._no_signal.count(metrics)

    def after_record(self, step: int, rollouts: pa.Table) -> None:
        """Check the counts after `step` (1-based) was recorded, counted and reported."""
        self._skipped.check(step, rollouts)
        self._no_signal.check(step)


def storable(metrics: Mapping[str, float], stats: UpdateStats) -> dict[str, float]:
    """Return the metrics of a step; if an update was skipped, 0 in place of non-finite ones."""
    return finite_or_zero(metrics) if stats.skipped else dict(metrics)


def _of_what_is_learned(gates: Gates, algorithm: Algorithm) -> Gates:
    """Return the limits, without that of advantages if the loss does not use them, as a teacher's does not."""
    needs_teacher = LOSSES.get(algorithm.loss.name).needs_teacher
    return gates.model_copy(update={"without_advantage": None}) if needs_teacher else gates
