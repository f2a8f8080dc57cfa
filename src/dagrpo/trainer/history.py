"""History of a run: finished steps, recorded and reported on rank 0."""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from dagrpo.core.experiment import task_metric
from dagrpo.rewards.hacking import WINDOW, hacked
from dagrpo.rollout.attempts_file import kept_rollouts
from dagrpo.rollout.collect import FailedPrograms
from dagrpo.trainer.batches.rollouts import Rollouts
from dagrpo.trainer.checks.suite import CheckSuite, Figures, storable
from dagrpo.trainer.clock import Clock
from dagrpo.trainer.metrics.step import CALLED, in_brief, rollout_rows, step_metrics, turn_timings
from dagrpo.trainer.metrics.throughput import Throughput
from dagrpo.trainer.run import AGENT, Report, TrainingRun
from dagrpo.trainer.sampling.held_out import HeldOutEvaluations
from dagrpo.trainer.sampling.step_sampler import function_names
from dagrpo.trainer.sampling.usable import require_calls
from dagrpo.trainer.state.records import Record
from dagrpo.trainer.update.stats import UpdateStats
from dagrpo.utils.console import progress, say

logger = logging.getLogger(__name__)


class HackingWarnings:
    """Watcher of a run's recorded metrics, which warns once of each component that rises while accuracy falls, and of its collapse."""

    def __init__(self, what: str) -> None:
        """Start to watch. what: the run, such as "train (seed 1)"."""
        self._what = what
        self._warned: set[str] = set()
        self._rows: list[dict[str, float]] = []  # of the steps from 1 on

    def warn(self, step: int, record: Record) -> None:
        """Warn on the screen and in the log, as of every WINDOW-th step, from 1."""
        if step % WINDOW:
            return
        rows = self._rows
        rows += [record.metrics(number) for number in range(len(rows) + 1, step + 1)]
        for found in hacked({name: [row.get(name, math.nan) for row in rows] for name in rows[0]}):
            if found.component not in self._warned:
                self._warned.add(found.component)
                sentence = f"{self._what}, step {step}: {found}."
                logger.warning(sentence)
                say(sentence)


@dataclass(kw_only=True)
class History:
    """Finished steps on rank 0: recorded beside the state, counted by the checks, reported, shown on a progress bar, written
    at the end. Does nothing on the other ranks, which have no `held_out`."""

    run: TrainingRun
    record: Record
    held_out: HeldOutEvaluations | None
    checks: CheckSuite
    throughput: Throughput
    clock: Clock
    report: Report

    def __post_init__(self) -> None:
        self._failed_programs = FailedPrograms(self.run.state / AGENT)
        self._hacking = HackingWarnings(f"train (seed {self.run.seed})")

    def require_resumable(self, steps: int) -> None:
        """Raise Damaged if the records of the first `steps` steps beside their state are damaged, as far as sizes show it."""
        self.record.require_resumable(steps)
        if self.held_out is not None:
            self.held_out.require_whole(steps)

    def restore(self, finished: int) -> bool:
        """Report the steps that an earlier execution has finished. Return True if steps or a held-out evaluation are left to do."""
        if self.held_out is None:
            return False
        self.run.describe()
        for step in range(1, finished + 1):
            self.report(step, self.checks.count(self.record.reported(step)))
        return self.held_out.restore(finished) or finished < self.last_step

    @property
    def last_step(self) -> int:
        """The number of steps of the run: training.steps, or fewer where training.patience has ended it. On rank 0."""
        assert self.held_out is not None
        return self.held_out.last_step

    @contextmanager
    def progress(self, finished: int) -> Iterator[None]:
        """Show a progress bar, which begins with `finished` steps, inside the block."""
        if self.held_out is None:
            yield
            return
        with progress(f"train (seed {self.run.seed})", self.run.training.steps) as self._bar:
            self._bar.advance(finished)
            yield

    def append(self, rollouts: Rollouts | None, stats: UpdateStats, figures: Figures) -> None:
        """Record a finished step with the figures of its checks, and report it. Raises UserError if the run learns nothing."""
        if rollouts is None:
            return
        clock, rollouts = self.clock, replace(rollouts, advantages=stats.advantages)
        clock.split("rollout", "rewards", rollouts.grading_seconds)
        step, metrics = rollouts.step + 1, storable(step_metrics(rollouts, stats) | figures, stats)
        timings = (
            turn_timings(rollouts) | self.throughput.figures(rollouts, clock.laps) | clock.sizes | self.checks.figures
        )
        timings |= {} if rollouts.staleness is None else {"rollout/ahead_seconds": rollouts.ahead_seconds}
        rows = rollout_rows(rollouts, stats.logprobs)
        kept = kept_rollouts(rows, self.run.runtime.keep_rollouts, step)
        self.record.add(step, kept, metrics, clock.laps | timings, stats.digests)
        clock.lap("record")
        self.report(step, self.checks.count(metrics | clock.laps | timings))
        if self.run.rollout.agent.require_calls:
            prompts = [each.trajectory.prompt for each in rollouts.graded]
            for task in rollouts.tasks or ("",):
                functions = function_names([prompt for prompt in prompts if task in ("", prompt.row.task)])
                require_calls(self._called(step, task), functions, step, task)
        self._hacking.warn(step, self.record)
        self.checks.after_record(step, rows)
        self._failed_programs.warn(f"train (seed {self.run.seed}), step {step}", rollouts.attempts)
        has_reference = self.run.algorithm.kl.coefficient > 0
        self._bar.advance(1, in_brief(metrics | timings, has_reference=has_reference))

    def _called(self, step: int, task: str) -> Iterator[float]:
        """Yield the share of the trajectories that called a tool, for each step up to this one; of a task of a mixture, if it is named."""
        for number in range(1, step + 1):
            metrics = self.record.metrics(number)
            if not task:
                yield metrics[CALLED]
            elif metrics[task_metric(task, "groups")]:
                yield metrics[task_metric(task, "called_fraction")]

    def write(self) -> None:
        """Write the outputs of a run whose steps are all finished, but for the policy."""
        if self.held_out is None:
            return
        run, steps = self.run, self.last_step
        self.record.write_metrics(steps, run.metrics)
        self.record.write_rollouts(steps, run.rollouts)
        self.held_out.write(run.held_out)
