"""Held-out problems that the policy answers before the first step, every training.evaluate_every steps and after the last.

Rank 0 does it, with the engine that samples for training and the weights that it holds. Nothing of it reaches the training:
the rollouts, the policy and the metrics have the same bytes with and without. What is on record is not made again, so that
a run that was interrupted leaves the bytes of one that was not.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from dagrpo.console import say
from dagrpo.evaluation.held_out import HELD_OUT, Row, figures, points
from dagrpo.evaluation.held_out_problems import HeldOut, held_out, identities, split_of
from dagrpo.evaluation.sampling import SplitAttempts
from dagrpo.files import write_parquet
from dagrpo.params.training import Training
from dagrpo.rewards.grading import Grader
from dagrpo.rollout.engine.interface import RolloutEngine
from dagrpo.rollout.sampling import training_sampling
from dagrpo.sealed import Damaged, read_sealed, write_sealed
from dagrpo.trainer.run import HeldOutSplits, Report, TrainingRun

logger = logging.getLogger(__name__)


def is_evaluated(training: Training, finished: int) -> bool:
    """Whether the policy after so many steps answers held-out problems; the same in every rank."""
    every = training.evaluate_every
    return every > 0 and (finished % every == 0 or finished == training.steps)


class HeldOutEvaluations:
    """Those of one run. Their record lives beside the run's state, one file for each evaluated step."""

    def __init__(self, run: TrainingRun, tokenizer: PreTrainedTokenizerBase, report: Report) -> None:
        """Read and render the problems. UserError: some cannot be used."""
        self._run = run
        self._tokenizer = tokenizer
        self._report = report
        self._folder = run.state / "held_out"
        self._known = set[int]()  # the steps whose evaluations an earlier execution has made, and this one need not
        self.is_on = run.training.evaluate_every > 0
        self._tasks = list(_tasks_of(run, tokenizer)) if self.is_on else []

    def require_whole(self, steps: int) -> None:
        """Check the recorded evaluations of the policies before the one after `steps` steps, whose state can make its own again.

        Damaged: one is not what was written. A run can make it again only from a state that is not further than that.
        """
        for step in range(steps):
            if is_evaluated(self._run.training, step):
                self._rows(step)

    def go_on(self, finished: int) -> bool:
        """Report the recorded evaluations of the policies up to that after so many steps.

        Returns whether that policy's own is missing. Later ones are made again: where rollouts are not deterministic, their
        policies may be others now.
        """
        self._known = {step for step in range(finished + 1) if self._is_known(step)}
        for step in sorted(self._known):
            self._tell(step)
        return is_evaluated(self._run.training, finished) and finished not in self._known

    def evaluate(self, finished: int, engine: RolloutEngine, grader: Grader) -> None:
        """Have the engine, which holds the policy after so many steps, answer. Does nothing where it is not due, or on record."""
        if not is_evaluated(self._run.training, finished) or finished in self._known:
            return
        extractor = self._run.reward.extractor
        rows = [
            row for task in self._tasks for row in task.answered(finished, engine, self._tokenizer, grader, extractor)
        ]
        write_sealed(self._file(finished), {"rows": rows})
        told = ", ".join(f"{each.task} {each.accuracy:.3f} ({each.right} of {each.problems})" for each in points(rows))
        sentence = f"train (seed {self._run.seed}), held-out problems after step {finished}: {told}"
        logger.info(sentence)
        say(sentence)
        self._tell(finished)

    def write(self, path: Path) -> None:
        """held_out.parquet of a finished run; without rows where nothing was asked for."""
        training = self._run.training
        steps = [step for step in range(training.steps + 1) if is_evaluated(training, step)]
        rows = [dict(row) for step in steps for row in self._rows(step)]
        write_parquet(path, pa.Table.from_pylist(rows, schema=HELD_OUT))

    def _is_known(self, step: int) -> bool:
        try:
            return is_evaluated(self._run.training, step) and bool(self._rows(step))
        except Damaged:
            return False

    def _tell(self, finished: int) -> None:
        for step, values in figures(self._rows(finished)).items():
            self._report(step, values)

    def _rows(self, step: int) -> list[Row]:
        match read_sealed(self._file(step)):
            case {"rows": list(rows)}:
                return rows
        raise Damaged(self._file(step), "does not hold an evaluation")

    def _file(self, step: int) -> Path:
        return self._folder / f"step_{step:05d}.json"


def _tasks_of(run: TrainingRun, tokenizer: PreTrainedTokenizerBase) -> Iterator[HeldOut]:
    learned = identities(run.train_split)
    for splits in run.held_out_splits:
        yield held_out(_attempts(run, splits), run.training.evaluation_problems, learned, tokenizer)


def _attempts(run: TrainingRun, splits: HeldOutSplits) -> SplitAttempts:
    """One greedy attempt at each problem, under the limits of training."""
    return SplitAttempts(
        model=run.initial,
        split=split_of(splits.validation, splits.test),
        passages=splits.passages,
        conversation=run.rollout,
        sampling=training_sampling(run.rollout, 0, greedy=True),
        seeds=(0, run.seed),
        engine=run.runtime.engine,
        dtype=run.rollout.dtype,
        head_dtype=run.rollout.head_dtype,
        server_log=run.server_log,
        agent_folder=run.state / "held_out_agent",
    )
