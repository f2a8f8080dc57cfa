"""Section `reward`: grading of completions, and the reward's components."""

from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.plugin_sections import NameOf, Several
from dagrpo.core.section import EXTRACTION, Extractor, Seconds, Section
from dagrpo.rewards.components import COMPONENTS, Weighted
from dagrpo.rewards.unit_tests.settings import UnitTests
from dagrpo.rewards.verifiers import VERIFIERS, get_verifier

if TYPE_CHECKING:
    from dagrpo.config.schema import Params

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
        names = [name for name, config in self.components.items() if config.weight]
        components = [f"reward.components.{name}" for name in names if COMPONENTS.get(name).needs_report]
        return [*(["reward.verifier"] if verifier else []), *components]

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if not any(config.weight for config in self.components.values()):
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

    def check(self, params: "Params") -> None:
        """Raise UserError if one of the components cannot work with the other parameters."""
        for name, config in self.components.items():
            if config.weight:
                COMPONENTS.get(name).check(config, params)
