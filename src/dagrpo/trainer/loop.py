"""The GRPO loop on one page: sample, update, sync weights, record."""

from dagrpo.trainer.batches.rollouts import broadcast_batch
from dagrpo.trainer.checks.suite import CheckSuite
from dagrpo.trainer.history import History
from dagrpo.trainer.sampling.source import RolloutSource
from dagrpo.trainer.saver import Saver
from dagrpo.trainer.shutdown import Shutdown
from dagrpo.trainer.update.policy_update import PolicyUpdate
from dagrpo.trainer.weight_sync import WeightSync
from dagrpo.utils.distributed import World


def take_steps(
    first: int,
    steps: int,
    *,
    world: World,
    source: RolloutSource,
    policy: PolicyUpdate,
    sync: WeightSync,
    checks: CheckSuite,
    history: History,
    saver: Saver,
    shutdown: Shutdown,
) -> None:
    """Run the steps from `first` (0-based) up to `steps`; save what is finished when a signal asks to stop, or training.patience ends.

    Every rank runs this. Only rank 0 samples, grades and records: elsewhere `source` returns None and `history` does nothing.
    """
    for step in range(first, steps):
        rollouts = source.next(step)  # sampled by the weights of `training.staleness` steps before
        if shutdown.requested() or source.has_ended(step):
            saver.save(step)
            break
        saver.finish()  # the state that was written during sampling, before its weights change
        batch = broadcast_batch(rollouts, world)
        stats = policy.update(step, batch, rollouts)  # advantages, mini-batches, loss, optimizer
        figures = checks.after_update(step, batch, stats, rollouts)
        sync.push(step + 1)  # into the engine
        history.append(rollouts, stats, figures)
        saver.save_if_due(step + 1)
