"""Weight sync: the policy's weights, or its adapter, into the engine."""

from dagrpo.checkpoints.tensors import total_bytes
from dagrpo.trainer.batches.rollouts import version_of
from dagrpo.trainer.checks.suite import CheckSuite
from dagrpo.trainer.clock import Clock
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.sampling.held_out import is_evaluated
from dagrpo.trainer.sampling.source import RolloutSource, SamplingSource
from dagrpo.trainer.sync.policy_weights import PolicyWeights


class WeightSync:
    """Sync of the policy's weights into rank 0's engine. Every rank has one and gives its parts."""

    def __init__(
        self, weights: PolicyWeights, source: RolloutSource, checks: CheckSuite, clock: Clock, training: Training
    ) -> None:
        self._weights = weights
        self._source = source
        self._checks = checks
        self._clock = clock
        self._training = training

    def push(self, finished: int) -> None:
        """Load the weights after `finished` steps into the engine, once older ones have sampled their batches.

        The weights after the last step are loaded to answer held-out problems, if that is due. Every rank calls this.
        """
        steps = self._training.steps
        if self._source.wait() and (finished < steps or is_evaluated(self._training, finished)):
            self._load(finished)
        self._clock.lap("weight_sync")
        if finished == steps:
            self._source.evaluate(finished)

    def catch_up(self, finished: int) -> None:
        """Let older weights sample the batches that they owe, then load those after `finished` steps again. Every rank calls this."""
        if self._source.catch_up(finished):
            self._load(finished)

    def _load(self, finished: int) -> None:
        if not isinstance(self._source, SamplingSource):
            self._weights.give_parts()
            return
        with self._weights.reading() as tensors:
            self._source.engine.load(tensors, version_of(finished))
            self._clock.sizes["timing/weight_sync_bytes"] = float(total_bytes(tensors))
            self._checks.after_sync(self._source.engine, tensors, finished)
            self._source.prefetch.remember(finished, tensors)
