"""Steps from which nothing can be learned: the samples of every problem earn the same reward, so all advantages are zero.

A run goes on through them, since the problems that come may differ. It says so once, and why that may be.
"""

import logging
from collections.abc import Mapping

from dagrpo.console import say

STEPS = 5  # so many in a row are worth a sentence, and so many more another one
METRIC = "steps_with_equal_rewards"
MOST = 0.5  # from this share of completions on, a cause is likely
ALL = 0.99
logger = logging.getLogger(__name__)


class EqualRewards:
    """Counts them over a run; told of every step in order, also of those before an interruption."""

    def __init__(self, *, seed: int, max_new_tokens: int) -> None:
        self._seed = seed
        self._max_new_tokens = max_new_tokens
        self._row: list[Mapping[str, float]] = []

    def counted(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """The metrics of the next step with the number of such steps in a row, up to this one."""
        self._row = [*self._row, metrics] if metrics["zero_std_fraction"] == 1 else []
        return {**metrics, METRIC: float(len(self._row))}

    def warn(self, step: int) -> None:
        """Say it after every STEPS of them in a row, on the screen and in the log."""
        if self._row and len(self._row) % STEPS == 0:
            sentence = self._sentence(step)
            logger.warning(sentence)
            say(sentence)

    def _sentence(self, step: int) -> str:
        return (
            f"train (seed {self._seed}), step {step}: for {len(self._row)} steps all samples of a problem have earned the "
            f"same reward, from which nothing can be learned: {self._cause()}."
        )

    def _cause(self) -> str:
        """The likeliest one, of the last STEPS."""
        truncated, missing = self._mean("truncated_fraction"), self._mean("missing_answer_fraction")
        accuracy = self._mean("accuracy")
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
        return "they are all right or all wrong, so raise training.samples_per_prompt or rollout.temperature"

    def _mean(self, name: str) -> float:
        last = self._row[-STEPS:]
        return sum(metrics[name] for metrics in last) / len(last)
