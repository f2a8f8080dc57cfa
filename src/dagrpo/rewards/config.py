"""Section `reward`: grading of completions, and the reward's components."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.plugin_sections import NameOf, Several
from dagrpo.core.section import Seconds, Section
from dagrpo.rewards.components import COMPONENTS, Weighted
from dagrpo.rewards.unit_tests import UnitTests
from dagrpo.rewards.verifiers import VERIFIERS, get_verifier
from dagrpo_answers.verifier import EXTRACTION, Extractor

_ACCURACY: Any = {"accuracy": {}}


class Reward(Section):
    verifier: Annotated[str, NameOf(VERIFIERS, also=("task",))] = Field(
        "task", description="Verifier that compares an answer with the ground truth; task: the one that the task names."
    )
    extractor: Extractor = Field("strict", description=f"How the answer is extracted. {EXTRACTION}")
    components: Annotated[dict[str, Weighted], Several(COMPONENTS)] = Field(
        _ACCURACY, description="Components of the reward, which is their sum, each times its weight."
    )
    verify_seconds: Seconds = Field(2.0, description="Time limit of math-verify for one answer.")
    unit_tests: UnitTests = Field(UnitTests(), description="Limits of programs under test (verifier unit_tests).")
    permuted: bool = Field(
        False,
        description="Control experiment: shuffle the rewards within each step, so that they carry no information and learning stops.",
    )

    @property
    def reported_keys(self) -> list[str]:
        """List the keys that take the report of a program or an environment; [] without such keys."""
        verifier = self.verifier != "task" and get_verifier(self.verifier).by_report
        names = [name for name, config in self.components.items() if config.counts]
        components = [f"reward.components.{name}" for name in names if COMPONENTS.get(name).needs_report]
        return [*(["reward.verifier"] if verifier else []), *components]

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if not any(config.counts for config in self.components.values()):
            raise UserError("no reward.components has a weight, so nothing can be learned: give one of them a weight")
        return self

    @model_validator(mode="after")
    def _check_labels(self) -> Self:
        labels = [COMPONENTS.label(name) for name in self.components]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise UserError(
                f"two reward.components have the name {twice[0]} in metrics: rename one of them in its module"
            )
        return self

    @model_validator(mode="after")
    def _check_required(self) -> Self:
        for name, config in self.components.items():
            if config.counts and config.requires:
                _check_gate(name, config.requires, self.components)
        return self

    @property
    def files(self) -> list[str]:
        """List the files that the components read, whose content is part of the stage's identity."""
        counted = {name: config for name, config in self.components.items() if config.counts}
        return [path for name, config in counted.items() for path in COMPONENTS.get(name).files(config)]


def _check_gate(name: str, gate: str, components: dict[str, Weighted]) -> None:
    """Raise UserError if component `name` requires one that is not computed, is never above 0, or requires another itself."""
    key = f"reward.components.{name}.requires"
    if gate == name or gate not in components or not components[gate].counts:
        raise UserError(
            f'{key} is {gate}, which is no other component with a weight: add {gate} to reward.components, or set it to ""'
        )
    if components[gate].requires:
        raise UserError(f"{key} is {gate}, which requires another component itself: name that one")
    limits = COMPONENTS.get(gate).limits
    if limits is not None and limits(components[gate])[1] <= 0:
        raise UserError(f"{key} is {gate}, which is never above 0, so that {name} would never count: name another one")
