"""Saver of a run's resumable states."""

from functools import partial
from typing import Any

from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.sampling import prefetch_state
from dagrpo.trainer.sampling.source import RolloutSource
from dagrpo.trainer.setup import Setup
from dagrpo.trainer.state import tensors
from dagrpo.trainer.update.policy_update import PolicyUpdate

# Among a state's notes:
AHEAD = "ahead"  # number of saved batches that wait for their update
PROMPTS = "drawn"  # state of the prompt sampler: position and retired prompts
GATES = "gates"  # counts of the checks over weight syncs


class Saver:
    """Saver of states every `save_every` steps, after the last step and on demand. Every rank has one and writes its part."""

    def __init__(self, setup: Setup, *, first: int, update: PolicyUpdate, source: RolloutSource) -> None:
        """Start after `first` steps, whose state is saved."""
        self._setup = setup
        self._saved = first
        self._update = update
        self._source = source

    def save_if_due(self, finished: int) -> None:
        """Write the state after `finished` steps if runtime.training.save_every asks for it, or the run is at its end."""
        if _is_due(finished, self._setup.run):
            self.save(finished)

    def save(self, finished: int) -> None:
        """Write the state after `finished` steps, unless it is the last one that was saved."""
        if finished == self._saved:
            return
        setup, run = self._setup, self._setup.run
        prompts, pending = self._source.end(finished)
        notes: dict[str, Any] = {**self._update.saved, PROMPTS: prompts, GATES: setup.checks.saved}
        if run.training.staleness:
            notes[AHEAD] = len(pending.batches)
        keep = max(run.runtime.training.keep_states, tensors.KEPT_WHILE_RUNNING)
        beside = partial(prefetch_state.write, pending=pending)
        model, optimizer = setup.policy.model, setup.optimizer
        tensors.save(run.state, finished, model, optimizer, setup.world, notes, keep, setup.base, beside)
        self._saved = finished


def _is_due(finished: int, run: TrainingRun) -> bool:
    return finished % run.runtime.training.save_every == 0 or finished == run.training.steps
