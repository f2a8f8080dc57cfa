"""Recomputation of a run's updates from its recorded rollouts.

No engine is opened, and nothing is sampled.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dagrpo.cli.replay.policy import UpdatedPolicy
from dagrpo.cli.replay.recorded_run import RecordedRun
from dagrpo.cli.replay.recorded_step import RecordedStep, pictures_of, read_step
from dagrpo.core.errors import UserError
from dagrpo.trainer.state import states
from dagrpo.trainer.state.digest_table import StepDigests, TensorDigests
from dagrpo.trainer.state.digests import read, weight_digests
from dagrpo.utils.determinism import compute_deterministically
from dagrpo.utils.distributed import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """First tensor of a step, in the order of computation, whose digest differs from the recorded one."""

    kind: str  # gradient or weights
    update: int  # of the step, from 1
    tensor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCheck:
    """Comparison of a step as recorded and as recomputed."""

    step: int  # from 1
    after: int  # the step whose saved state it was computed from; 0: the initial checkpoint
    difference: Difference | None
    recorded: StepDigests
    computed: StepDigests
    recorded_grad_norm: float
    grad_norm: float
    largest_logprob_difference: float  # nats, between the trainer's logprobs then and now

    @property
    def is_compared(self) -> bool:
        """Return True if the run has recorded digests of this step."""
        return self.recorded.are_recorded

    @property
    def gradient_agrees(self) -> bool:
        return self.recorded.gradients == self.computed.gradients

    @property
    def weights_agree(self) -> bool:
        return self.recorded.weights == self.computed.weights


def replay(run: RecordedRun, steps: Sequence[int], world: World) -> list[StepCheck]:
    """Recompute the steps, and those between the nearest earlier state and them. Every rank calls this.

    Raises UserError if a state or the initial checkpoint differs from the recorded one.
    """
    compute_deterministically(run.rollout.deterministic)
    recomputation = Recomputation(run, world)
    return [check for step in sorted(set(steps)) for check in recomputation.up_to(step)]


class Recomputation:
    """Recomputation of a run's recorded steps, one after the other."""

    def __init__(self, run: RecordedRun, world: World) -> None:
        self._run = run
        self._world = world
        self._policy = UpdatedPolicy(run, world)
        self._pictures = pictures_of(run.initial, run.train_split)
        self._from = self._finished = 0

    def up_to(self, step: int) -> Iterator[StepCheck]:
        """Yield the checks of the steps up to this one."""
        self._go_to_nearest_state(step - 1)
        while self._finished < step:
            yield self._check(self._finished + 1)

    def _go_to_nearest_state(self, at_most: int) -> None:
        """Load the newest saved state of at most `at_most` steps, if it is ahead of the policy."""
        root = self._run.state
        nearest = states.nearest(root, at_most) if self._world.is_rank_zero else None
        step: int = self._world.broadcast(0 if nearest is None else nearest.step)
        if step <= self._finished:
            return
        try:
            self._policy.load(states.at(root, step))
        except FileNotFoundError:
            raise UserError(
                f"The state of step {step} was removed by a running training while it was read: replay again."
            ) from None
        self._from = self._finished = step
        self._require_the_recorded_weights(step)

    def _require_the_recorded_weights(self, step: int) -> None:
        recorded = self._run.digests[step]
        if not recorded.are_recorded:  # the state's own description has been checked
            return
        pending = weight_digests(self._policy.model, self._world, recorded.computed.hashed_by)
        (weights,) = read([pending], self._world)
        different = first_difference(recorded.weights, weights)
        if different is not None:
            raise UserError(
                f"{states.at(self._run.state, step).folder} is not the state that the run recorded: its weights after step {step} "
                f"differ first in {different}. Move it away to replay from an earlier one."
            )

    def _read(self, step: int) -> RecordedStep:
        return read_step(self._run.table(step), self._run.training, self._pictures)

    def _check(self, step: int) -> StepCheck:
        recorded, table = self._run.digests[step], self._read(step)
        stats = self._policy.update(step, table.batch, recorded.computed.budget, recorded.computed.hashed_by)
        self._finished = step
        return StepCheck(
            step=step,
            after=self._from,
            difference=difference_of(recorded, stats.digests),
            recorded=recorded,
            computed=stats.digests,
            recorded_grad_norm=self._run.grad_norms[step],
            grad_norm=stats.grad_norm,
            largest_logprob_difference=float((stats.logprobs - table.trainer_logprobs).abs().max()),
        )


def difference_of(recorded: StepDigests, computed: StepDigests) -> Difference | None:
    """Return the first difference between the recorded and the computed digests of a step."""
    ours = {(kind, update): digests for kind, update, digests in computed.parts()}
    for kind, update, digests in recorded.parts():
        tensor = first_difference(digests, ours.get((kind, update), {}))
        if tensor is not None:
            return Difference(kind=kind, update=update, tensor=tensor)
    return None


def first_difference(recorded: TensorDigests, computed: TensorDigests) -> str | None:
    """Return the first tensor name whose digests differ."""
    names = sorted(recorded.keys() | computed.keys())
    return next((name for name in names if recorded.get(name) != computed.get(name)), None)
