"""Section `reward`: grading of completions, and the reward's components."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.plugged import NameOf, Several
from dagrpo.core.section import EXTRACTION, Extractor, Seconds, Section
from dagrpo.rewards.components import COMPONENTS, Weighted
from dagrpo.rewards.verifiers import VERIFIERS, get_verifier

_ACCURACY: Any = {"accuracy": {}}


class Reward(Section):
    verifier: Annotated[str, NameOf(VERIFIERS, also=("task",))] = Field(
        "task", description="Verifier that compares an answer with the ground truth; task: the task's own."
    )
    extractor: Extractor = Field("strict", description=f"How the answer is read. {EXTRACTION}")
    components: Annotated[dict[str, Weighted], Several(COMPONENTS)] = Field(
        _ACCURACY, description="The reward is the sum of these components, each times its weight."
    )
    verify_seconds: Seconds = Field(2.0, description="Longest time math-verify may take for one answer.")
    permuted: bool = Field(
        False,
        description="Control experiment: shuffle the rewards within each step, so that they say nothing; learning must stop.",
    )

    @property
    def reported_keys(self) -> list[str]:
        """List the keys that take the report of a program or an environment; [] without such keys."""
        verifier = self.verifier != "task" and get_verifier(self.verifier).by_report
        names = [name for name, config in self.components.items() if config.weight]
        components = [f"reward.components.{name}" for name in names if COMPONENTS.get(name).needs_report]
        return [*(["reward.verifier"] if verifier else []), *components]

    @model_validator(mode="after")
    def _something_counts(self) -> Self:
        if not any(config.weight for config in self.components.values()):
            raise UserError("no reward.components has a weight, so nothing could be learned: give one of them a weight")
        return self

    @model_validator(mode="after")
    def _labels_differ(self) -> Self:
        labels = [COMPONENTS.label(name) for name in self.components]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise UserError(f"two reward.components are called {twice[0]} in metrics: rename one of them in its module")
        return self
