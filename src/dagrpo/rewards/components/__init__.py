"""Components of a reward, each with its parameters.

A component reads a trajectory and its verdict; its reward is still 0. Verifiers extract and compare answers (verifiers/).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any, Generic, Protocol, Self, TypeVar

from pydantic import Field, model_validator

from dagrpo.core.errors import UserError, place_of_code, require_arguments
from dagrpo.core.plugin_sections import PluginName
from dagrpo.core.plugins import Plugins
from dagrpo.core.section import MOST_STEPS, Factor, Section
from dagrpo.core.trajectory import GradedTrajectory

Step = Annotated[int, Field(ge=1, le=MOST_STEPS)]


class Weighted(Section):
    """Base of a component's parameters: how it counts. A component's Config adds its other keys."""

    weight: Factor = Field(
        1.0, description="Factor of the component in the reward; at 0, without final_weight, it is not computed."
    )
    final_weight: Factor | None = Field(
        None,
        description="Factor from step final_step on, towards which the weight goes linearly; null: always the same.",
    )
    first_step: Step = Field(1, description="Last step with `weight`, where there is a final_weight.")
    final_step: Step | None = Field(None, description="First step with final_weight.")
    requires: PluginName = Field(
        "",
        description="Name of another component that has to be above 0, or this one counts as 0: `accuracy: {requires: format}`; "
        '"": none.',
    )

    @model_validator(mode="after")
    def _check_steps(self) -> Self:
        if (self.final_weight is None) != (self.final_step is None):
            raise UserError("a component's final_weight and final_step belong together: give both, or set both to null")
        if self.final_step is None and self.first_step != type(self).model_fields["first_step"].default:
            raise UserError(
                "a component's first_step begins a change to final_weight: give that and final_step, or leave it out"
            )
        if self.final_step is not None and self.first_step >= self.final_step:
            raise UserError(
                f"a component's weight goes from first_step {self.first_step} to final_step {self.final_step}: let first_step be smaller"
            )
        return self

    @property
    def counts(self) -> bool:
        """Return True if the component has a weight at some step."""
        return self.weight != 0 or bool(self.final_weight)

    def weight_at(self, step: int) -> float:
        """Return w0 + (w1 - w0) * clip((step - first_step) / (final_step - first_step), 0, 1); `step` counts from 1."""
        if self.final_weight is None or self.final_step is None:
            return self.weight
        passed = (step - self.first_step) / (self.final_step - self.first_step)
        return self.weight + (self.final_weight - self.weight) * min(1.0, max(0.0, passed))


ConfigType = TypeVar("ConfigType", bound=Weighted)


class RewardModel(Protocol):
    """Classifier that scores conversations."""

    def scores(self, conversations: Sequence[Sequence[Mapping[str, Any]]]) -> list[float]:
        """Return the score of each conversation, a list of chat messages."""
        ...


class OpenComponent(Protocol):
    """Component of a model, which is asked about many trajectories at once."""

    def values(self, attempts: Sequence[GradedTrajectory]) -> list[float | None]:
        """Return one value for each trajectory; None if the model gave none, and the trajectory is to be excluded."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return the metrics of what was asked since the last call, always the same names."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Component(Generic[ConfigType]):
    """One summand of the reward, before its weight."""

    config: type[ConfigType]  # its keys in reward.components.<name>
    function: Callable[[GradedTrajectory, ConfigType], float] | None = None  # None: `open` is given
    # Opens a component that asks a model. The stage serves the reward model, if the parameters name one.
    open: Callable[[ConfigType, RewardModel | None], AbstractContextManager[OpenComponent]] | None = None
    files: Callable[[ConfigType], list[str]] = lambda config: []  # paths whose content is part of the stage's identity
    # The lowest and the highest value, before the weight; None: unknown.
    limits: Callable[[ConfigType], tuple[float, float]] | None = None
    needs_tools: bool = False  # always 0 on a task without tools, which is refused
    needs_report: bool = False  # always 0 with an agent that never reports, which is refused
    # Always 0 with a verifier without tests or parts, which is refused; all tests are run, also after one that fails.
    needs_tests: bool = False

    def __post_init__(self) -> None:
        """Raise UserError, with its file and line, for a function that takes other arguments."""
        if self.open is None:
            require_arguments("function", self.function, "graded", "config")


COMPONENTS: Plugins[Component[Any]] = Plugins(
    what="component",
    package=__name__,
    attribute="COMPONENT",
    group="dagrpo.components",
    key="reward.components",
    kind=Component,
    families={
        "answers": ("accuracy", "format", "passed_tests", "reported"),
        "lengths": ("overlong", "turn_limit"),
        "tool_use": ("repeated_call", "successful_call", "tool_calls", "tool_effort"),
    },
)


def lowest_reward(components: Mapping[str, Weighted]) -> float | None:
    """Return the lowest reward that the components can give, weights included; None if the limits of one are unknown."""
    lowest = 0.0
    for name, config in components.items():
        limits = COMPONENTS.get(name).limits
        if not config.counts:
            continue
        if limits is None:
            return None
        weights = [weight for weight in (config.weight, config.final_weight) if weight is not None]
        values = (*limits(config), *((0.0,) if config.requires else ()))
        lowest += min(weight * each for weight in weights for each in values)
    return lowest


def value_of(name: str, graded: GradedTrajectory, config: Weighted) -> float:
    """Return one component that asks no model, unweighted. Raises UserError if it is no finite number."""
    function = COMPONENTS.get(name).function
    assert function is not None, "it asks a model"
    value: object = function(graded, config)
    if not isinstance(value, Real) or not math.isfinite(value):
        raise UserError(
            f"component {name} ({place_of_code(function)}) returned {repr(value)[:60]}, not a finite number: let it return a float."
        )
    return float(value)
