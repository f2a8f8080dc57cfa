"""Terms added to any loss, each with its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import Field

from dagrpo.algorithms.tokens import TokenBatch, TokenLoss
from dagrpo.core.errors import require_arguments
from dagrpo.core.plugins import Plugins
from dagrpo.core.section import Factor, Section


class Weighed(Section):
    """Base of a term's parameters: its coefficient. A term's Config adds its other keys."""

    coefficient: Factor = Field(0.0, description="Factor of the term in the loss; at 0 it is not computed.")

    @property
    def counts(self) -> bool:
        """Return True if the term is computed."""
        return bool(self.coefficient)


ConfigType = TypeVar("ConfigType", bound=Weighed)


class Coefficient(NamedTuple):
    """The factor of a term in one step, a list in JSON."""

    applied: float
    basis: float  # from which `adapted` computes the next one; differs from `applied` while the term is not applied


@dataclass(frozen=True, slots=True, kw_only=True)
class Term(Generic[ConfigType]):
    """A loss per token beside the policy's, to be minimised, before its coefficient. Aggregated as the policy loss is."""

    config: type[ConfigType]  # its keys in algorithm.terms.<name>
    function: Callable[[TokenBatch, ConfigType], TokenLoss]
    positive_only: bool = False  # aggregated over sequences with a right answer alone
    needs_entropy: bool = False  # needs a gradient through TokenBatch.entropy
    needs_teacher: bool = False  # reads TokenBatch.teacher_logprobs
    # Computes the next step's coefficient from this step's basis and measured entropy; None: the coefficient is fixed.
    adapted: Callable[[float, float, ConfigType], Coefficient] | None = None

    def __post_init__(self) -> None:
        """Raise UserError, with its file and line, for a function that takes other arguments."""
        require_arguments("function", self.function, "batch", "config")


TERMS: Plugins[Term[Any]] = Plugins(
    what="term",
    package=__name__,
    attribute="TERM",
    group="dagrpo.terms",
    key="algorithm.terms",
    kind=Term,
    families={
        "entropies": ("adaptive_entropy", "entropy"),
        "likelihoods": ("distillation", "positive_nll", "squared_log_ratio"),
    },
)


def computed(terms: Mapping[str, Weighed]) -> dict[str, Weighed]:
    """Return the terms of algorithm.terms whose coefficient is not 0."""
    return {name: config for name, config in terms.items() if config.counts}
