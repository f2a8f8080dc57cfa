"""reward_model: the score of a sequence classifier that was trained on preferences."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.experiment import Experiment
from dagrpo.core.section import Factor
from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.rewards.components import Component, OpenComponent, RewardModel, Weighted
from dagrpo_answers.own_text import without_thoughts

MANIFEST = "manifest.json"  # of its folder: lists its files with their digests
CLIPPED = "reward/reward_model_clipped_fraction"
WITHOUT_ANSWER = "reward/reward_model_without_answer_fraction"


class Config(Weighted):
    """Score of a reward model, less a mean, divided by a scale, and clipped. runtime.reward_model: its server."""

    folder: str = Field(
        "",
        description="Checkpoint of a sequence classifier with one label in the Hugging Face layout, with a manifest.json, such as "
        "models/skywork; `dagrpo convert FOLDER NEW --to hf` makes one of a download.",
    )
    mean: Factor = Field(0.0, description="Score that counts as 0.")
    scale: Annotated[float, Field(gt=0, le=1e6)] = Field(1.0, description="Difference of scores that counts as 1.")
    lowest: Factor = Field(-10.0, description="Lowest value, after mean and scale; also without an answer.")
    highest: Factor = Field(10.0, description="Highest value, after mean and scale.")

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.lowest >= self.highest:
            raise UserError(
                f"reward.components.reward_model.lowest is {self.lowest:g} and highest {self.highest:g}: let lowest be smaller"
            )
        return self

    def check(self, experiment: Experiment) -> None:
        """Raise UserError if no checkpoint is named, or an output of the experiment. Snakemake's start looks whether it is there."""
        if not self.folder:
            raise UserError(
                "reward.components.reward_model.folder is empty: name the checkpoint of a sequence classifier"
            )
        if f"results/{experiment.name}/" in f"{self.folder}/":
            raise UserError(
                f"reward.components.reward_model.folder is {self.folder}, which is an output of this experiment: name another checkpoint"
            )


class _Scored:
    """Reward model with its normalisation."""

    def __init__(self, config: Config, model: RewardModel) -> None:
        self._config = config
        self._model = model
        self._clipped: list[bool] = []
        self._number = 0  # of attempts since the last call of metrics

    def values(self, attempts: Sequence[GradedTrajectory]) -> list[float | None]:
        """Return clip((score - mean) / scale, lowest, highest) of each prompt's messages with the policy's answer.

        An answer is the text without its thoughts. Without one the value is `lowest`, and the model is not asked.
        """
        config = self._config
        answers = [without_thoughts(each.trajectory.text) for each in attempts]
        conversations = [
            (*each.trajectory.prompt.row.prompt, {"role": "assistant", "content": answer})
            for each, answer in zip(attempts, answers, strict=True)
            if answer.strip()
        ]
        scores = self._model.scores(conversations) if conversations else []
        normalised = [(score - config.mean) / config.scale for score in scores]
        values = [min(config.highest, max(config.lowest, score)) for score in normalised]
        self._number += len(answers)
        self._clipped += [value != score for value, score in zip(values, normalised, strict=True)]
        of_answers = iter(values)
        return [next(of_answers) if answer.strip() else config.lowest for answer in answers]

    def metrics(self) -> dict[str, float]:
        """Return the shares of clipped scores and of attempts without an answer since the last call."""
        clipped, number, self._clipped, self._number = self._clipped, self._number, [], 0
        silent = number - len(clipped)
        return {CLIPPED: sum(clipped) / max(1, len(clipped)), WITHOUT_ANSWER: silent / max(1, number)}


@contextmanager
def _open(config: Config, reward_model: RewardModel | None) -> Iterator[OpenComponent]:
    assert reward_model is not None, "the stage serves it"
    yield _Scored(config, reward_model)


COMPONENT = Component(
    config=Config,
    open=_open,
    files=lambda config: [str(Path(config.folder, MANIFEST))],
    limits=lambda config: (config.lowest, config.highest),
)
