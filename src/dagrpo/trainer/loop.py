"""GRPO loop: sample, grade, update, sync weights, record.

It can resume after any saved step. Every rank runs it. Rank 0 also samples, grades and records; the other ranks get the data of
the update. With training.staleness a thread of rank 0 samples while the policy is updated (trainer/batches/prefetch.py).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from dagrpo.checkpoints.manifest import tensor_digest_of
from dagrpo.checkpoints.sharded import save_sharded
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.engine import may_share_memory, open_engine
from dagrpo.engine.interface import EngineOpener
from dagrpo.models.pictures import processor_of
from dagrpo.rollout.collect import FailedPrograms
from dagrpo.rollout.prompts import Prompts
from dagrpo.rollout.trajectory import Problem
from dagrpo.trainer import checks, state
from dagrpo.trainer.accumulators import BeforeUpdate
from dagrpo.trainer.advantages import step_advantages
from dagrpo.trainer.batches import prefetch_state
from dagrpo.trainer.batches.packing import RolloutBatch
from dagrpo.trainer.batches.prefetch import Untrained, version_of
from dagrpo.trainer.batches.prompt_sampler import Drawing
from dagrpo.trainer.batches.step_rollouts import StepRollouts
from dagrpo.trainer.batches.training_problems import training_problems
from dagrpo.trainer.checks.free_memory import require_room
from dagrpo.trainer.checks.sharing import resolved
from dagrpo.trainer.checks.suite import Watch, storable
from dagrpo.trainer.driver import RankZero
from dagrpo.trainer.held_out import HeldOutEvaluations, is_evaluated
from dagrpo.trainer.history import Clock, Record, in_brief, rollout_rows, step_metrics
from dagrpo.trainer.model.fsdp import load_reference, trained_policy
from dagrpo.trainer.model.optimizer import policy_optimizer
from dagrpo.trainer.objective import Objective
from dagrpo.trainer.open_driver import AGENT, open_rank_zero
from dagrpo.trainer.run import Report, TrainingRun, unheard
from dagrpo.trainer.shutdown import Stop
from dagrpo.trainer.sync.weight_sync import EngineWeights
from dagrpo.trainer.throughput import Throughput
from dagrpo.trainer.turn_metrics import CALLED, turn_timings
from dagrpo.trainer.update import PolicyUpdate, UpdateStats
from dagrpo.utils.console import Advance
from dagrpo.utils.determinism import compute_deterministically, explained
from dagrpo.utils.distributed import World, expand_segments

# Among a state's notes:
AHEAD = "ahead"  # number of saved batches that are not trained on yet
DRAWN = "drawn"  # state of the prompt sampler: position and retired prompts
GATES = "gates"  # counts of the checks over weight syncs


def train(
    run: TrainingRun,
    report: Report,
    world: World,
    opener: EngineOpener = open_engine,
    report_held_out: Report = unheard,
) -> None:
    """Train to the last step, from the newest state if there is one, and write the outputs.

    `report(step, metrics)` is called on rank 0 for every step of the run, seconds included: first for those that an
    earlier execution finished. `report_held_out(step, accuracies)` is called likewise for every policy that has
    answered held-out problems; `step` is the one that produced the policy, 0 for the initial one.

    Raises UserError if the data, the checkpoint, the engine or a saved state cannot be used.
    """
    compute_deterministically(run.rollout.deterministic)
    if not (world.is_rank_zero and may_share_memory(run.runtime.engine)):
        expand_segments()
    with explained(), state.exclusive(run.state) if world.is_rank_zero else nullcontext():
        Trainer(run, report, world, opener, report_held_out).train()


class Trainer:
    """One rank of a training run."""

    def __init__(
        self,
        run: TrainingRun,
        report: Report,
        world: World,
        opener: EngineOpener,
        report_held_out: Report = unheard,
    ) -> None:
        """Read the data, then load the policy, so that a bad row fails at once."""
        self._run = run
        self._report = report
        self._world = world
        self._opener = opener
        self._record = Record(run.state)
        self._failed_programs = FailedPrograms(run.state / AGENT)
        self._tokenizer = load_tokenizer(run.initial)
        self._problems = self._read_problems() if world.is_rank_zero else []
        self._held_out = HeldOutEvaluations(run, self._tokenizer, report_held_out) if world.is_rank_zero else None
        training = run.training
        require_room(run.initial, "training", training, world)
        checkpointing = run.runtime.training.activation_checkpointing
        self._policy = trained_policy(
            run.initial, world, training, run.rollout, run.seed, activation_checkpointing=checkpointing
        )
        self._budget = resolved(run.runtime.training, self._policy, world)
        self._optimizer = policy_optimizer(self._policy, run.training)
        self._base = tensor_digest_of(run.initial)
        self._throughput = Throughput.of(self._policy.model, world, run.runtime.engine)
        self._watch = Watch(
            run,
            self._problems,
            self._record,
            policy=self._policy,
            budget=self._budget,
            pad_token_id=self._pad_token_id(),
            world=world,
        )

    def train(self) -> None:
        """Run every unfinished step, then write the outputs."""
        run, world, model = self._run, self._world, self._policy.model
        recorded = self._require_whole
        finished = state.resume(run.state, run.training.steps, model, self._optimizer, world, recorded, self._base)
        if world.is_rank_zero:
            run.describe()
            self._watch.recorded(finished)
            for step in range(1, finished + 1):
                self._report(step, self._watch.counted(self._record.reported(step)))
        lacks_last = self._held_out.go_on(finished) if self._held_out is not None else False
        if finished < run.training.steps or world.broadcast(lacks_last):
            self._take_steps(finished)
        if self._held_out is not None:
            self._watch.recorded(run.training.steps)
            self._record.write_metrics(run.training.steps, run.metrics)
            self._record.write_rollouts(run.training.steps, run.rollouts)
            self._held_out.write(run.held_out)
        save_sharded(model, run.initial, run.policy, world)
        if world.is_rank_zero:
            state.prune(run.state, run.training.steps, run.runtime.training.keep_states)

    def _require_whole(self, steps: int) -> None:
        """Raise Damaged, on rank 0, if the records of the first `steps` steps beside their state are damaged."""
        self._record.require_whole(steps)
        if self._held_out is not None:
            self._held_out.require_whole(steps)

    def _read_problems(self) -> list[Problem]:
        prompts = Prompts(self._tokenizer, self._run.rollout, processor_of(self._run.initial))
        return training_problems(self._run.train_split, prompts, self._run.training)

    def _take_steps(self, first: int) -> None:
        """Run the steps from `first` (0-based) on; if none is left, only the last policy's held-out evaluation."""
        run, steps, save_every = self._run, self._run.training.steps, self._run.runtime.training.save_every
        update, saved = self._policy_update(first), first
        self._watch.go_on(self._notes(first).get(GATES, {}))
        weights = EngineWeights(self._policy.model, run, self._world)
        stop = Stop(run.runtime.grace_seconds, self._world)
        with self._rank_zero(weights, first) as rank_zero, stop.listening():
            if rank_zero and first == steps:
                stop.interrupts(partial(rank_zero.evaluate, steps, Clock()))
            last = steps if self._make_up_missing(rank_zero, weights, first, stop) else first
            for step in range(first, last):
                clock = Clock()
                self._watch.before_rollouts(rank_zero.engine if rank_zero else None, step)
                clock.lap("gates")
                rollouts = stop.interrupts(partial(rank_zero.rollouts, step, clock)) if rank_zero else None
                if stop.told():
                    if step > saved:
                        self._save(step, update, rank_zero)
                    break
                if rank_zero:
                    rank_zero.make_room(clock)
                batch = self._broadcast(rollouts)
                before = update.before(batch)
                rollouts, batch = self._with_advantages(rollouts, batch, before, update.objective)
                stats = update.run(step, batch, before)
                clock.lap("update")
                figures = self._watch.updated(batch, stats, step + 1) if rank_zero else {}
                goes_on = self._finish_sampling(rank_zero, clock, stop)
                # The last weights sample no batch: sync them only for a held-out evaluation.
                if goes_on and (step + 1 < steps or is_evaluated(run.training, steps)):
                    self._load_into_engine(rank_zero, weights, step + 1)
                clock.lap("hand_over")
                if rank_zero and step + 1 == steps:
                    stop.interrupts(partial(rank_zero.evaluate, steps, clock))
                if rank_zero and rollouts:
                    clock.split("rollout", "rewards", rollouts.grading_seconds)
                    self._keep(rollouts, stats, figures, clock, rank_zero.bar)
                    rank_zero.ahead.trained(step)
                if (step + 1) % save_every == 0 or step + 1 == steps or not goes_on:
                    self._save(step + 1, update, rank_zero)
                    saved = step + 1
                if not goes_on:
                    break
            if rank_zero:
                rank_zero.ahead.require_sound()

    def _make_up_missing(self, rank_zero: RankZero | None, weights: EngineWeights, first: int, stop: Stop) -> bool:
        """Sample the missing batches of earlier weights: the run was stopped before that, or had fewer steps.

        Returns, in every rank, True if none is missing; the engine then holds the weights after `first` steps.
        """
        if not self._world.broadcast(bool(rank_zero.ahead.missing(first)) if rank_zero else None):
            return True
        if rank_zero:
            stop.interrupts(partial(rank_zero.make_up, first))
        if stop.told():
            return False
        self._load_into_engine(rank_zero, weights, first)
        return True

    def _finish_sampling(self, rank_zero: RankZero | None, clock: Clock, stop: Stop) -> bool:
        """Wait until sampling has ended. Returns, in every rank, True if the run continues, so that the engine gets new weights."""
        if not self._run.training.staleness:
            return True
        finished = stop.interrupts(rank_zero.ahead.finish) if rank_zero else None
        clock.lap("rollout")
        return not stop.told() and bool(self._world.broadcast(finished))

    def _save(self, finished: int, update: PolicyUpdate, rank_zero: RankZero | None) -> None:
        """Write the state after `finished` steps; rank 0 knows the prompts that they have sampled, and writes the notes."""
        run, drawn, untrained = self._run, None, Untrained()
        if rank_zero:
            rank_zero.ahead.end()
            drawn, untrained = rank_zero.ahead.drawn(finished), rank_zero.ahead.untrained(finished)
        notes: dict[str, Any] = {**update.saved, DRAWN: drawn, GATES: self._watch.saved}
        if run.training.staleness:
            notes[AHEAD] = len(untrained.batches)
        keep = max(run.runtime.training.keep_states, state.KEPT_WHILE_RUNNING)
        beside = partial(prefetch_state.write, untrained=untrained)
        model, optimizer = self._policy.model, self._optimizer
        state.save(run.state, finished, model, optimizer, self._world, notes, keep, self._base, beside)

    def _broadcast(self, rollouts: StepRollouts | None) -> RolloutBatch:
        """Return, in every rank, the data of rank 0's rollouts that the update reads."""
        tensors = rollouts.batch().tensors() if rollouts else None
        return RolloutBatch.from_tensors(self._world.broadcast_tensors(tensors))

    def _with_advantages(
        self, rollouts: StepRollouts | None, batch: RolloutBatch, before: BeforeUpdate | None, objective: Objective
    ) -> tuple[StepRollouts | None, RolloutBatch]:
        """Compute the advantages on rank 0, broadcast them and add them to rollouts and batch."""
        if rollouts is not None:
            penalty = None if before is None else objective.penalty(before.logprobs, before.reference_logprobs)
            advantages = step_advantages(rollouts, self._run.algorithm.advantage, before, penalty)
            rollouts = replace(rollouts, advantages=advantages)
        told = self._world.broadcast_tensors(None if rollouts is None else {"advantages": advantages})
        return rollouts, replace(batch, advantages=told["advantages"])

    def _load_into_engine(self, rank_zero: RankZero | None, weights: EngineWeights, finished: int) -> None:
        """Sync the weights: rank 0 reads them one by one, and every other rank gives its parts of each."""
        if rank_zero is None:
            weights.give_parts()
            return
        with weights.reading() as handed:
            rank_zero.engine.load(handed, version_of(finished))
            self._watch.handed_over(rank_zero.engine, handed, finished)
            rank_zero.ahead.remember(finished, handed)

    def _keep(
        self, rollouts: StepRollouts, stats: UpdateStats, figures: dict[str, float], clock: Clock, bar: Advance
    ) -> None:
        """Record and report a finished step, with the figures of its checks."""
        step, metrics = rollouts.step + 1, storable(step_metrics(rollouts, stats) | figures, stats)
        timings = turn_timings(rollouts) | self._throughput.figures(rollouts, clock.laps) | self._watch.figures
        timings |= {} if rollouts.staleness is None else {"rollout/ahead_seconds": rollouts.ahead_seconds}
        rows = rollout_rows(rollouts, stats.logprobs)
        self._record.add(step, rows, metrics, clock.laps | timings, stats.digests)
        clock.lap("record")
        self._report(step, self._watch.counted(metrics | clock.laps | timings))
        if self._run.rollout.agent.require_calls:
            called = (self._record.metrics(number)[CALLED] for number in range(1, step + 1))
            checks.require_calls(called, rollouts.functions, step)
        self._watch.finished_step(step, rows)
        discarded = rollouts.drawn.discarded if rollouts.drawn else ()
        attempts = [each.trajectory for each in (*rollouts.graded, *discarded)]
        self._failed_programs.warn(f"train (seed {self._run.seed}), step {step}", attempts)
        has_reference = self._run.algorithm.kl.coefficient > 0
        bar.advance(1, in_brief(metrics | timings, has_reference=has_reference))

    @contextmanager
    def _rank_zero(self, weights: EngineWeights, finished: int) -> Iterator[RankZero | None]:
        """Yield an engine that holds the weights, with the rest of rank 0's part; None on the others.

        The other ranks give their parts of the weights while the engine is opened.
        """
        if not self._world.is_rank_zero:
            weights.give_all_parts()
            yield None
            return
        assert self._held_out is not None
        opened = open_rank_zero(
            self._run,
            self._opener,
            weights,
            finished,
            tokenizer=self._tokenizer,
            problems=self._problems,
            drawing=self._drawing(finished),
            held_out=self._held_out,
            watch=self._watch,
        )
        with opened as rank_zero:
            yield rank_zero

    def _drawing(self, finished: int) -> Drawing:
        saved = self._notes(finished).get(DRAWN)
        return Drawing(self._problems, self._run.training, self._run.seed, finished=finished, saved=saved)

    def _policy_update(self, finished: int) -> PolicyUpdate:
        run = self._run
        reference = None
        if run.algorithm.kl.coefficient > 0:
            reference = load_reference(run.initial, self._world, self._policy)
        return PolicyUpdate(
            policy=self._policy,
            reference=reference,
            optimizer=self._optimizer,
            algorithm=run.algorithm,
            training=run.training,
            budget=self._budget,
            temperature=run.rollout.temperature,
            max_new_tokens=run.rollout.max_new_tokens,
            pad_token_id=self._pad_token_id(),
            world=self._world,
            seed=run.seed,
            saved=self._notes(finished),
        )

    def _notes(self, finished: int) -> Mapping[str, Any]:
        """Return the notes of the state after `finished` steps; {} before the first one."""
        notes: Mapping[str, Any] = state.at(self._run.state, finished).notes if finished else {}
        return notes

    def _pad_token_id(self) -> int:
        tokenizer = self._tokenizer
        return int(tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id)
