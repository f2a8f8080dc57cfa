"""Count consecutive steps from which nothing can be learned.

The update of a step with a loss, gradient or reward that is not finite is skipped by all ranks alike: weights and optimizer stay as they
are, so that a resumed run skips it too. Several in a row are no accident, and end the run, unless the loss scale in float16 explains
them: it halves each time.

Or all advantages are zero, as when all samples of every problem earn the same reward; or most completions are cut off, have no
answer, or cannot be verified. Later problems may differ: a run continues through such steps with a warning that names the likely
cause, unless training.gates.learns_nothing ends it.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from dagrpo.core.errors import UserError
from dagrpo.core.experiment import task_metric, tasks_among
from dagrpo.trainer.config.checks import Gates
from dagrpo.trainer.state.records import keep
from dagrpo.trainer.update.stats import OVERFLOWED, SKIPPED
from dagrpo.utils.console import say

METRIC = "gate/steps_without_advantage"
MOST = 0.5  # from this share of completions on, a cause is likely
ALL = 0.99
logger = logging.getLogger(__name__)


LOOK = "so look at some of them in the run's rollouts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Share that is watched, with its limit."""

    share: str  # the metric
    limit: str  # the parameter, in section training.gates
    count: str  # the metric that counts the steps in a row
    what: str  # has this share, for messages; {} stands for rollout.max_new_tokens
    remedy: str = LOOK


NO_ADVANTAGE = Watched(
    share="rollout/groups_without_advantage",
    limit="without_advantage",
    count=METRIC,
    what="of the problems have no completion that is better than another",
)
WATCHED = (
    NO_ADVANTAGE,
    Watched(
        share="rollout/truncated_fraction",
        limit="truncated",
        count="gate/steps_truncated",
        what="of the completions are cut off at rollout.max_new_tokens ({})",
        remedy="so raise it",
    ),
    Watched(
        share="reward/missing_answer_fraction",
        limit="missing_answers",
        count="gate/steps_without_answers",
        what="of the completions have no answer to read",
    ),
    Watched(
        share="reward/unverifiable_fraction",
        limit="unverifiable",
        count="gate/steps_unverifiable",
        what="of the answers could not be verified in time (reward.verify_seconds)",
    ),
)


class NoSignal:
    """Counter of steps from which little can be learned, fed with every step in order, also those before an interruption."""

    def __init__(self, params: Gates, *, seed: int, max_new_tokens: int) -> None:
        self._params = params
        self._limits: dict[str, float | None] = {
            "without_advantage": params.without_advantage,
            "truncated": params.truncated,
            "missing_answers": params.missing_answers,
            "unverifiable": params.unverifiable,
        }
        self._seed = seed
        self._max_new_tokens = max_new_tokens
        self._rows: dict[str, list[Mapping[str, float]]] = {each.count: [] for each in WATCHED}
        self._groups: dict[str, float] = {}  # of each task of a mixture, in a row, from which nothing could be learned
        self._most = 0.0  # of them before a warning: as many as the steps have that make one for all tasks

    def count(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics of the next step with its counts: for each watched share, the steps in a row above its limit."""
        for each in WATCHED:
            row, limit = self._rows[each.count], self._limits[each.limit]
            self._rows[each.count] = [*row, metrics] if limit is not None and metrics[each.share] >= limit else []
        groups = {task: metrics[task_metric(task, "groups")] for task in tasks_among(metrics)}
        limit = self._limits["without_advantage"]
        self._most = self._params.steps_in_a_row * sum(groups.values())
        for task, number in groups.items():
            lost = limit is not None and metrics.get(task_metric(task, "no_signal_fraction"), limit) >= limit
            self._groups[task] = self._groups.get(task, 0.0) + number if lost else 0.0
        return {**metrics, **{name: float(len(row)) for name, row in self._rows.items()}}

    def check(self, step: int) -> None:
        """Warn every few steps, on the screen and in the log, about the first share above its limit.

        Raises UserError instead if the run is to end.
        """
        many, ends = self._params.steps_in_a_row, self._params.learns_nothing == "refuse"
        for each in WATCHED:
            count = len(self._rows[each.count])
            if count >= many and (ends or count % many == 0):
                self._tell(self._sentence(each, step), ends=ends)
                return
        for task, groups in self._groups.items():
            if groups >= self._most:
                self._groups[task] = 0.0
                self._tell(
                    f"train (seed {self._seed}), step {step}: in the last {groups:.0f} prompts of the task {task} no completion is better "
                    "than another, so that nothing can be learned of it: take harder or easier problems, or change its share "
                    "(experiment.train).",
                    ends=False,
                )

    def _tell(self, sentence: str, *, ends: bool) -> None:
        if ends:
            raise UserError(sentence)
        logger.warning(sentence)
        say(sentence)

    def _sentence(self, watched: Watched, step: int) -> str:
        row, limit = self._rows[watched.count], self._limits[watched.limit]
        start = f"train (seed {self._seed}), step {step}: for {len(row)} steps"
        if watched is NO_ADVANTAGE and limit == 1:
            return f"{start} no completion is better than another of its problem, so that nothing can be learned: {self._cause(row)}."
        share, what = self._mean(row, watched.share), watched.what.format(self._max_new_tokens)
        return f"{start} {share:.0%} {what}, {watched.remedy} (training.gates.{watched.limit}: {limit:g})."

    def _cause(self, row: Sequence[Mapping[str, float]]) -> str:
        """Return the likeliest cause of advantages that are all zero in the last steps."""
        truncated, missing = (
            self._mean(row, "rollout/truncated_fraction"),
            self._mean(row, "reward/missing_answer_fraction"),
        )
        accuracy = self._mean(row, "reward/accuracy")
        if truncated >= MOST and accuracy <= 1 - ALL:
            return f"{truncated:.0%} of the completions are cut off at rollout.max_new_tokens ({self._max_new_tokens}), so raise it"
        if missing >= MOST:
            return (
                f"in {missing:.0%} of the completions no answer is found, so look at some (`dagrpo grade` shows how each is read), and "
                "choose another reward.extractor, another form of the task, or more sft.steps to learn the form"
            )
        if accuracy >= ALL:
            return "all answers are right, so take harder problems (training.max_pass_rate, another task)"
        if accuracy <= 1 - ALL:
            return "all answers are wrong, so take easier problems (training.min_pass_rate), more sft.steps or a larger model"
        return "the answers to a problem are all right or all wrong, so raise training.samples_per_prompt or rollout.temperature"

    def _mean(self, row: Sequence[Mapping[str, float]], name: str) -> float:
        last = row[-self._params.steps_in_a_row :]
        return sum(metrics[name] for metrics in last) / len(last)


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
