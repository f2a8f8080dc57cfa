"""First half of steps: sample, grade, compute advantages, write.

The policy is not updated.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagrpo.core.errors import UserError
from dagrpo.engine.interface import EngineOpener
from dagrpo.engine.open import open_engine
from dagrpo.trainer import state
from dagrpo.trainer.driver import RankZero
from dagrpo.trainer.history import Clock, rollout_rows
from dagrpo.trainer.loop import AHEAD, DRAWN, Trainer
from dagrpo.trainer.run import TrainingRun, step_file
from dagrpo.trainer.sync.weight_sync import EngineWeights
from dagrpo.trainer.update import PolicyUpdate
from dagrpo.utils.distributed import World
from dagrpo.utils.tables import write_parquet


class RolloutHalf(Trainer):
    """Trainer without updates: every step is sampled from the same weights."""

    def __init__(
        self, run: TrainingRun, world: World, start: state.SavedState | None, opener: EngineOpener = open_engine
    ) -> None:
        """Load the policy of state `start`, whose weights sample; None: the initial checkpoint.

        Raises UserError if the state does not determine the next prompts.
        """
        if start is not None:
            _require_drawn(run, start)
        super().__init__(run, lambda step, metrics: None, world, opener)
        self._start = 0 if start is None else start.step
        self._notes_at_start: Mapping[str, Any] = {} if start is None else start.notes
        if start is not None:
            state.load(start, self._policy.model, self._optimizer, self._base)

    def make(self, steps: Sequence[int], folder: Path) -> Iterator[tuple[int, pa.Table]]:
        """Write the rollouts of each step (1-based) to the folder; yield each once it is written.

        A step that follows neither the state nor another step samples as if each earlier one had sampled just its batch, and
        retired no prompt.
        """
        weights = EngineWeights(self._policy.model, self._run, self._world)
        update = self._policy_update(0)  # its coefficients do not affect rollouts
        with self._rank_zero(weights, self._start) as rank_zero:
            assert rank_zero is not None, "one process samples"
            drawn = self._start
            for step in steps:
                if step != drawn + 1:
                    rank_zero.buffer.drawing = self._drawing(step - 1)
                drawn = step
                table = self._made(step, rank_zero, update)
                write_parquet(folder / step_file(step), table)
                yield step, table

    def _notes(self, finished: int) -> Mapping[str, Any]:
        """Return the notes of the state `start` for its step, else {}."""
        return self._notes_at_start if finished == self._start else {}

    def _made(self, step: int, rank_zero: RankZero, update: PolicyUpdate) -> pa.Table:
        rollouts = rank_zero.rollouts(step - 1, Clock())
        batch = rollouts.batch()
        before = update.computed_before(batch)
        with_advantages, _ = self._with_advantages(rollouts, batch, before, update.objective)
        assert with_advantages is not None
        return rollout_rows(with_advantages, before.logprobs)


def _require_drawn(run: TrainingRun, start: state.SavedState) -> None:
    """Raise UserError if the next step's prompts follow neither from the state nor from the number of its steps."""
    training = run.training
    if start.notes.get(AHEAD):
        raise UserError(
            f"{start.folder} has batches that training.staleness has sampled ahead, so that the prompts of the next step are drawn "
            "already: see them in the rollouts of the run (.state/<run>/rollouts), or start from the initial checkpoint."
        )
    if DRAWN not in start.notes and (training.dynamic_sampling.is_on or training.retire_at is not None):
        raise UserError(
            f"{start.folder} does not say which prompts its steps have drawn, as no state of --from-rollouts does, and with "
            "training.dynamic_sampling or training.retire_at that does not follow from their number: start from a state of the "
            "run (.state/<run>/step_N)."
        )
