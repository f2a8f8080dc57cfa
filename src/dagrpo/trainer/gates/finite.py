"""What is not finite: a loss, a gradient or a reward of which nothing may reach the weights.

The update of such a step is skipped by all ranks alike, and counted: weights and optimizer stay as they are, so that a run that
was interrupted skips the same. Several in a row are no accident, and end the run, unless the scale of the loss in float16 explains them:
it halves each time.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import torch
from torch import Tensor

from dagrpo.distributed import World
from dagrpo.errors import UserError
from dagrpo.params.gates import Gates
from dagrpo.trainer.gates.refused import keep

SKIPPED = "gate/skipped_updates"
OVERFLOWED = "gate/overflowed_updates"  # of these; only where the loss is scaled


def require_finite_gradient(norm: float) -> None:
    """UserError when a gradient's norm is infinite or not a number: the optimizer must not see it."""
    if not math.isfinite(norm):
        raise UserError(
            f"the gradient's norm is {norm}: lower the learning rate, or look at the rewards and logprobs of this step"
        )


def finite_everywhere(values: Tensor, world: World) -> bool:
    """Whether all values are finite, of this rank and of every other. A collective: all ranks get the same answer."""
    wrong = (~torch.isfinite(values.detach())).sum().double().cpu()
    return float(world.all_reduce(wrong)) == 0


def finite_or_zero(figures: Mapping[str, float]) -> dict[str, float]:
    """Figures of a step of which an update was skipped: 0 where there is no number to tell."""
    return {name: value if math.isfinite(value) else 0.0 for name, value in figures.items()}


class SkippedSteps:
    """Counts the steps in a row with a skipped update; told of every step in order, also of those before an interruption."""

    def __init__(self, params: Gates, state: Path) -> None:
        self._most = params.skipped_steps
        self._state = state
        self._row = 0

    def count(self, metrics: Mapping[str, float]) -> None:
        """Told of the next step."""
        self._row = self._row + 1 if metrics.get(SKIPPED, 0.0) > metrics.get(OVERFLOWED, 0.0) else 0

    def check(self, step: int, rollouts: pa.Table) -> None:
        """UserError after too many, which names the file with the rollouts of the last of them, numbered from 1."""
        if self._row <= self._most:
            return
        path = keep(self._state, "rollouts", step, rollouts)
        raise UserError(
            f"step {step}: the loss, the gradient or a reward was not finite in {self._row} steps in a row, and "
            f"training.gates.skipped_steps allows {self._most}: lower training.learning_rate, correct the reward, or set "
            f"rollout.dtype to float32. Look at the rewards, advantages and logprobs of this step in {path}."
        )
