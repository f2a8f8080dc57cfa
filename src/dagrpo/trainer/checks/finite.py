"""Check that losses, gradients and rewards are finite.

The update of a step with a non-finite one is skipped by all ranks alike, and counted: weights and optimizer stay as they are,
so that a resumed run skips it too. Several in a row are no accident, and end the run, unless the loss scale in float16 explains
them: it halves each time.
"""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from dagrpo.core.errors import UserError
from dagrpo.trainer.config.checks import Gates
from dagrpo.trainer.state.refused_tables import keep
from dagrpo.trainer.update.stats import OVERFLOWED, SKIPPED


class SkippedSteps:
    """Counter of consecutive steps with a skipped update, fed with every step in order, also those before an interruption."""

    def __init__(self, params: Gates, state: Path) -> None:
        self._most = params.skipped_steps
        self._state = state
        self._row = 0

    def count(self, metrics: Mapping[str, float]) -> None:
        """Count the next step."""
        self._row = self._row + 1 if metrics.get(SKIPPED, 0.0) > metrics.get(OVERFLOWED, 0.0) else 0

    def check(self, step: int, rollouts: pa.Table) -> None:
        """Raise UserError after too many skipped steps; it names the rollouts file of the last of them (1-based)."""
        if self._row <= self._most:
            return
        path = keep(self._state, "rollouts", step, rollouts)
        raise UserError(
            f"step {step}: the loss, the gradient or a reward was not finite in {self._row} steps in a row, and "
            f"training.gates.skipped_steps allows {self._most}: lower training.learning_rate, correct the reward, or set "
            f"rollout.dtype to float32. Look at the rewards, advantages and logprobs of this step in {path}."
        )
