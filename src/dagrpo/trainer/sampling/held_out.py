"""Held-out evaluations during training.

The policy answers before the first step, every training.evaluate_every steps and after the last. Rank 0 evaluates with the
training's engine and the weights that it holds. The training is unaffected: the rollouts, the policy and the metrics have the
same bytes with and without. Recorded evaluations are not repeated, so that a resumed run leaves the bytes of an uninterrupted
one.
"""

import logging
from pathlib import Path
from statistics import fmean

import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from dagrpo.engine.interface import RolloutEngine
from dagrpo.evaluation.held_out_prompts import HeldOut, held_out, identities, split_of
from dagrpo.evaluation.held_out_table import HELD_OUT, TableRow, figures, points
from dagrpo.evaluation.sampling import SplitAttempts
from dagrpo.rewards.grading import Grader
from dagrpo.rollout.config import training_sampling
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.run import HeldOutSplits, Report, TrainingRun
from dagrpo.utils.checksummed_json import Damaged, read_checksummed, write_checksummed
from dagrpo.utils.console import say
from dagrpo.utils.tables import write_parquet

logger = logging.getLogger(__name__)


def is_evaluated(training: Training, finished: int) -> bool:
    """Return True if the policy after `finished` steps answers held-out problems; the same in every rank."""
    every = training.evaluate_every
    return every > 0 and (finished % every == 0 or finished == training.steps)


class HeldOutEvaluations:
    """Held-out evaluations of one run, recorded beside its state, one file per evaluated step."""

    def __init__(self, run: TrainingRun, tokenizer: PreTrainedTokenizerBase, report: Report) -> None:
        """Read and render the problems. Raises UserError if some cannot be used."""
        self._run = run
        self._tokenizer = tokenizer
        self._report = report
        self._folder = run.state / "held_out"
        self._known = set[int]()  # steps whose evaluations an earlier execution has recorded
        self.last_step = run.training.steps  # after which training.patience ends the run, as far as is known
        self.is_on = run.training.evaluate_every > 0
        self._tasks: list[HeldOut] = []
        if self.is_on:
            learned = set().union(*map(identities, run.train_splits.values()))
            self._tasks = [
                held_out(_attempts(run, splits), run.training.evaluation_problems, learned, tokenizer)
                for splits in run.held_out_splits
            ]

    def require_whole(self, steps: int) -> None:
        """Check the recorded evaluations of the policies before that of `steps` steps, whose state can repeat its own evaluation.

        Raises Damaged if a file has changed. A run can repeat an evaluation only from a state of that step or an earlier one.
        """
        for step in range(steps):
            if is_evaluated(self._run.training, step):
                self._rows(step)

    def restore(self, finished: int) -> bool:
        """Report the recorded evaluations of the policies up to that after `finished` steps, whose patience may end the run there.

        Returns True if that policy's own evaluation is missing. Later ones are repeated: where rollouts are not deterministic,
        their policies may differ now.
        """
        self._known = {step for step in range(finished + 1) if self._is_known(step)}
        for step in sorted(self._known):
            self._report_accuracies(step)
        if finished in self._known:
            self._end_without_rise(finished)
        return is_evaluated(self._run.training, finished) and finished not in self._known

    def evaluate(self, finished: int, engine: RolloutEngine, grader: Grader) -> None:
        """Let the engine, which holds the policy after `finished` steps, answer. Does nothing if that is not due, or recorded already."""
        if not is_evaluated(self._run.training, finished) or finished in self._known:
            return
        extractor = self._run.reward.extractor
        rows = [
            row for task in self._tasks for row in task.answered(finished, engine, self._tokenizer, grader, extractor)
        ]
        write_checksummed(self._file(finished), {"rows": rows})
        accuracies = ", ".join(
            f"{each.task} {each.accuracy:.3f} ({each.right} of {each.problems})" for each in points(rows)
        )
        sentence = f"train (seed {self._run.seed}), held-out problems after step {finished}: {accuracies}"
        logger.info(sentence)
        say(sentence)
        self._report_accuracies(finished)
        self._end_without_rise(finished)

    def write(self, path: Path) -> None:
        """Write held_out.parquet of a finished run; without rows if no evaluation was asked for."""
        steps = [step for step in range(self.last_step + 1) if is_evaluated(self._run.training, step)]
        rows = [dict(row) for step in steps for row in self._rows(step)]
        write_parquet(path, pa.Table.from_pylist(rows, schema=HELD_OUT))

    def _end_without_rise(self, finished: int) -> None:
        """Set `last_step` to `finished` if training.patience ends the run there. The last step's own evaluation counts if it is due."""
        patience, every = self._run.training.patience, self._run.training.evaluate_every
        if patience is None or finished not in range(every, self._run.training.steps, every):
            return
        evaluated = range(0, finished + 1, every)
        accuracies = [fmean(each.accuracy for each in points(self._rows(step))) for step in evaluated]
        best = accuracies.index(max(accuracies))
        if len(accuracies) - 1 - best >= patience:
            self.last_step = finished
            say(
                f"train (seed {self._run.seed}) ends after step {finished} of {self._run.training.steps}: its held-out accuracy is at "
                f"most that after step {evaluated[best]} ({accuracies[best]:.3f}), for {patience} evaluations (training.patience)."
            )

    def _is_known(self, step: int) -> bool:
        try:
            return is_evaluated(self._run.training, step) and bool(self._rows(step))
        except Damaged:
            return False

    def _report_accuracies(self, finished: int) -> None:
        for step, values in figures(self._rows(finished)).items():
            self._report(step, values)

    def _rows(self, step: int) -> list[TableRow]:
        rows: list[TableRow] = read_checksummed(self._file(step))["rows"]
        return rows

    def _file(self, step: int) -> Path:
        return self._folder / f"step_{step:05d}.json"


def _attempts(run: TrainingRun, splits: HeldOutSplits) -> SplitAttempts:
    """Return one greedy attempt at each problem, under the limits of training."""
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
