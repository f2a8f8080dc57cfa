"""The GRPO loop on one page: sample, update, sync weights, record.

`train` resumes, takes the remaining steps and writes the outputs.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from dagrpo.checkpoints.sharded import save_sharded
from dagrpo.engine import may_share_memory, open_engine
from dagrpo.engine.interface import EngineOpener
from dagrpo.trainer.batches.rollouts import broadcast_batch
from dagrpo.trainer.history import History
from dagrpo.trainer.model.optimizer import allocate_moments
from dagrpo.trainer.run import Report, TrainingRun, no_report
from dagrpo.trainer.saver import GATES
from dagrpo.trainer.setup import Setup
from dagrpo.trainer.state import states, tensors
from dagrpo.utils.determinism import compute_deterministically, explained
from dagrpo.utils.distributed import World, expand_segments


def train(
    run: TrainingRun,
    report: Report,
    world: World,
    opener: EngineOpener = open_engine,
    report_held_out: Report = no_report,
) -> None:
    """Train to the last step, or until training.patience ends the run, from the newest state if there is one, and write the outputs.

    `report(step, metrics)` is called on rank 0 for every step of the run, seconds included: first for those that an
    earlier execution finished. `report_held_out(step, accuracies)` is called likewise for every policy that has
    answered held-out problems; `step` is the one that produced the policy, 0 for the initial one.

    Raises UserError if the data, the checkpoint, the engine or a saved state cannot be used.
    """
    compute_deterministically(run.rollout.deterministic)
    engine, processes = run.runtime.engine, run.runtime.training.processes
    if not (world.rank < engine.gpus and may_share_memory(engine, processes)):
        expand_segments()
    with explained(), states.exclusive(run.state) if world.is_rank_zero else nullcontext():
        setup = Setup(run, world, report_held_out)
        history = setup.history(report)
        policy, optimizer, steps = setup.policy.model, setup.optimizer, run.training.steps
        place, keeper = (run.state, steps, policy, optimizer, world), setup.keeper
        finished = tensors.resume(*place, history.require_resumable, setup.base, keeper.first_missing)
        keeper.begin(finished)
        if world.broadcast(history.restore(finished)):
            if run.runtime.engine.max_total_tokens is None:
                allocate_moments(optimizer)  # before servers take what is free of their GPU
            _take_steps(setup, finished, history, opener)
        history.write()
        save_sharded(policy, run.initial, run.policy, world)
        if world.is_rank_zero:
            keeper.write_output(history.last_step)
            states.prune(run.state, history.last_step, run.runtime.training.keep_states)


def _take_steps(setup: Setup, first: int, history: History, opener: EngineOpener) -> None:
    """Run the steps from `first` (0-based) on; save what is finished when a signal asks to stop, or training.patience ends.

    If no step is left, only the last policy's held-out evaluation runs. Every rank runs this. Only rank 0 samples, grades and
    records: elsewhere `source` returns None and `history` does nothing.
    """
    run, steps = setup.run, setup.run.training.steps
    notes: Mapping[str, Any] = states.at(run.state, first).notes if first else {}
    update = setup.policy_update(notes)
    setup.checks.restore(notes.get(GATES, {}))
    with (
        setup.open_source(opener, first, notes) as (source, sync),
        history.progress(first),
        setup.shutdown.listening(),
        setup.saver(first, update, source) as saver,
    ):
        if first == steps:
            source.evaluate(first)
        sync.catch_up(first)
        for step in range(first, steps):
            rollouts = source.next(step)  # sampled by the weights of `training.staleness` steps before
            if setup.shutdown.requested() or source.has_ended(step):
                saver.save(step)
                break
            saver.finish()  # the state that was written during sampling, before its weights change
            batch = broadcast_batch(rollouts, setup.world)
            stats = update.update(step, batch, rollouts)  # advantages, mini-batches, loss, optimizer
            figures = setup.checks.after_update(step, batch, stats, rollouts)
            saver.gather_if_due(step + 1)
            sync.push(step + 1)  # into the engine
            history.append(rollouts, stats, figures)
            saver.save_if_due(step + 1)
