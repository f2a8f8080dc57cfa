"""Recomputation of a run's updates from its recorded rollouts.

No engine is opened, and nothing is sampled.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from dagrpo.core.errors import UserError
from dagrpo.trainer.state import states
from dagrpo.trainer.state.digest_table import Computed, StepDigests, TensorDigests, joint_digest
from dagrpo.trainer.state.digests import read, weight_digests
from dagrpo.trainer.update.stats import UpdateStats
from dagrpo.utils.determinism import compute_deterministically
from dagrpo.utils.distributed import World
from dagrpo.utils.environment import environment
from dagrpo.utils.portable import is_portable
from dagrpo_replay.policy import UpdatedPolicy
from dagrpo_replay.recorded_run import RecordedRun
from dagrpo_replay.recorded_step import pictures_of, read_step

HEADINGS = ("step", "computed from", "gradient", "", "weights", "", "gradient norm", "logprobs differ by at most")
DIGITS = 16  # hex digits of a digest
SAME, DIFFERENT, UNKNOWN = ("same", "green"), ("differs", "bold red"), ("not recorded", "dim")


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
    stats: UpdateStats  # of the update, computed again
    recorded_grad_norm: float
    largest_logprob_difference: float  # nats, between the trainer's logprobs then and now

    @property
    def computed(self) -> StepDigests:
        return self.stats.digests

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
        self.policy = UpdatedPolicy(run, world)
        self._pictures = pictures_of(run.initial, [*run.train_splits.values()])
        self._from = self.finished = 0

    def up_to(self, step: int) -> Iterator[StepCheck]:
        """Yield the checks of the steps up to this one."""
        self._go_to_nearest_state(step - 1)
        while self.finished < step:
            yield self._check(self.finished + 1)

    def _go_to_nearest_state(self, at_most: int) -> None:
        """Load the newest saved state of at most `at_most` steps, if it is ahead of the policy."""
        root = self._run.state
        nearest = states.nearest(root, at_most) if self._world.is_rank_zero else None
        step: int = self._world.broadcast(0 if nearest is None else nearest.step)
        if step <= self.finished:
            return
        try:
            self.policy.load(states.at(root, step))
        except FileNotFoundError:
            raise UserError(
                f"The state of step {step} was removed by a running training while it was read: replay again."
            ) from None
        self._from = self.finished = step
        self._require_the_recorded_weights(step)

    def _require_the_recorded_weights(self, step: int) -> None:
        recorded = self._run.digests[step]
        if not recorded.are_recorded:  # the state's own description has been checked
            return
        pending = weight_digests(self.policy.model, self._world, recorded.computed.hashed_by)
        (weights,) = read([pending], self._world)
        different = first_difference(recorded.weights, weights)
        if different is not None:
            raise UserError(
                f"{states.at(self._run.state, step).folder} is not the state that the run recorded: its weights after step {step} "
                f"differ first in {different}. Move it away to replay from an earlier one."
            )

    def _check(self, step: int) -> StepCheck:
        recorded = self._run.digests[step]
        table = read_step(self._run.table(step), self._run.training, self._pictures)
        stats = self.policy.update(step, table.batch, recorded.computed.budget, recorded.computed.hashed_by)
        self.finished = step
        return StepCheck(
            step=step,
            after=self._from,
            difference=difference_of(recorded, stats.digests),
            recorded=recorded,
            stats=stats,
            recorded_grad_norm=self._run.grad_norms[step],
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


def table(run: RecordedRun, checks: Sequence[StepCheck]) -> Table:
    """Return a table with one row per step; the digests are the recorded ones."""
    table_of_steps = Table(title=Text(str(run.folder)), title_justify="left")
    for heading in HEADINGS:
        table_of_steps.add_column(heading)
    for check in checks:
        gradients = [joint_digest(each) for each in check.recorded.gradients]
        table_of_steps.add_row(
            str(check.step),
            f"step {check.after}" if check.after else "initial",
            ", ".join(digest[:DIGITS] for digest in gradients),
            _verdict(check, agrees=check.gradient_agrees),
            joint_digest(check.recorded.weights)[:DIGITS] if check.is_compared else "",
            _verdict(check, agrees=check.weights_agree),
            f"{check.recorded_grad_norm:.6g}"
            + ("" if check.difference is None else f", now {check.stats.grad_norm:.6g}"),
            f"{check.largest_logprob_difference:.1e}",
        )
    return table_of_steps


def _verdict(check: StepCheck, *, agrees: bool) -> Text:
    return Text(*((SAME if agrees else DIFFERENT) if check.is_compared else UNKNOWN))


def basis(run: RecordedRun, checks: Sequence[StepCheck], here: Computed) -> str:
    """Return how many recomputed steps agree with the run, and which conditions here differ from the run's."""
    compared = [check for check in checks if check.is_compared]
    agree = sum(check.difference is None for check in compared)
    lines = [f"{agree} of {len(compared)} steps that were computed again agree bit for bit in gradient and weights."]
    if without := len(checks) - len(compared):
        lines.append(
            f"{without} more were computed on the way, of which nothing is recorded "
            "(training.digests_every): the weights after a later step follow from them."
        )
    lines += not_comparable(run, checks[-1].recorded.computed, here)
    return "\n".join(lines)


def not_comparable(run: RecordedRun, recorded: Computed, here: Computed) -> list[str]:
    """Return warnings about conditions that may change digests by rounding, without an error."""
    found = environment(on_gpu=True, portable=is_portable())
    own = {"device": here.device, **{k: v for k, v in found.items() if k != "device"}}
    packages = {
        k: v for k, v in (run.environment or {}).items() if k in {"machine", "arithmetic", "torch", "transformers"}
    }
    then: Mapping[str, str] = {"device": recorded.device, **packages}
    other = [f"{name} {value} (here {own.get(name, 'none')})" for name, value in then.items() if own.get(name) != value]
    return [f"The run was computed with {', '.join(other)}: small differences may be rounding."] if other else []


def explain_difference(checks: Sequence[StepCheck]) -> str | None:
    """Return a sentence about the first step that differs from the recorded one."""
    for check in checks:
        if (difference := check.difference) is not None:
            start = f"the state of step {check.after}" if check.after else "the initial checkpoint"
            return (
                f"Step {check.step}, computed again from {start}, is not what the run recorded: the {difference.kind} of its update "
                f"{difference.update} differs first in {difference.tensor} (gradient norm {check.recorded_grad_norm:.6g} then, "
                f"{check.stats.grad_norm:.6g} now; logprobs up to {check.largest_logprob_difference:.1e} apart)."
            )
    return None
