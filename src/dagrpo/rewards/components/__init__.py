"""Components of a reward: one file each, with Config and COMPONENT.

A component reads a trajectory and its verdict; its reward is still 0. Verifiers extract and compare answers (verifiers/).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import Field

from dagrpo.core.plugins import Plugins
from dagrpo.core.section import Factor, Section
from dagrpo.core.trajectory import GradedTrajectory

if TYPE_CHECKING:
    from dagrpo.config.schema import Params


class Weighted(Section):
    """Base of a component's parameters: its weight. A component's Config adds its other keys."""

    weight: Factor = Field(1.0, description="Factor of the component in the reward; at 0 it is not computed.")


ConfigType = TypeVar("ConfigType", bound=Weighted)


def _takes_any(config: Any, params: "Params") -> None:
    """Accept all parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component(Generic[ConfigType]):
    """One summand of the reward, before its weight."""

    config: type[ConfigType]  # its keys in reward.components.<name>
    function: Callable[[GradedTrajectory, ConfigType], float]
    # Raises UserError if the other parameters do not fit. Called when params.yaml has been parsed.
    check: Callable[[ConfigType, "Params"], None] = _takes_any
    # The lowest and the highest value, before the weight; None: unknown.
    limits: Callable[[ConfigType], tuple[float, float]] | None = None
    needs_tools: bool = False  # always 0 on a task without tools, which is refused
    needs_report: bool = False  # always 0 with an agent that never reports, which is refused
    needs_tests: bool = False  # always 0 with a verifier that runs no tests, which is refused; all tests are run, also after one that fails


COMPONENTS: Plugins[Component[Any]] = Plugins(
    what="component",
    package=__name__,
    attribute="COMPONENT",
    group="dagrpo.components",
    key="reward.components",
    kind=Component,
)


def lowest_reward(components: Mapping[str, Weighted]) -> float | None:
    """Return the lowest reward that the components can give, weights included; None if the limits of one are unknown."""
    lowest = 0.0
    for name, config in components.items():
        limits = COMPONENTS.get(name).limits
        if not config.weight:
            continue
        if limits is None:
            return None
        lowest += min(config.weight * each for each in limits(config))
    return lowest


def value_of(name: str, graded: GradedTrajectory, config: Weighted) -> float:
    """Return one component, unweighted."""
    return COMPONENTS.get(name).function(graded, config)
