"""Terms added to any loss: one file each, with Config and TERM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from pydantic import Field

from dagrpo.algorithms.tokens import TokenBatch, TokenLoss
from dagrpo.core.errors import UserError
from dagrpo.core.plugins import Plugins
from dagrpo.core.section import Factor, Section

if TYPE_CHECKING:
    from dagrpo.config.schema import Params


class Weighed(Section):
    """Base of a term's parameters: its coefficient. A term's Config adds its other keys."""

    coefficient: Factor = Field(0.0, description="Factor of the term in the loss; at 0 it is not computed.")


ConfigType = TypeVar("ConfigType", bound=Weighed)


class Coefficient(NamedTuple):
    """The factor of a term in one step, a list in JSON."""

    applied: float
    basis: float  # from which `adapted` computes the next one; differs from `applied` while the term is not applied


def _takes_any(config: Any, params: Params) -> None:
    """Accept all parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term(Generic[ConfigType]):
    """A loss per token beside the policy's, to be minimised, before its coefficient. It is added up as the loss is."""

    config: type[ConfigType]  # its keys in algorithm.terms.<name>
    function: Callable[[TokenBatch, ConfigType], TokenLoss]
    positive_only: bool = False  # added up over sequences with a right answer alone, as if there were no others
    needs_entropy: bool = False  # wants a gradient through TokenBatch.entropy
    needs_teacher: bool = False  # reads TokenBatch.teacher_logprobs
    # The coefficient of the next step, from what this one kept and the entropy that it measured; None: it stays.
    adapted: Callable[[float, float, ConfigType], Coefficient] | None = None
    # Raises UserError where the other parameters are not ones that it can work with. Called when params.yaml is read.
    check: Callable[[ConfigType, Params], None] = _takes_any


TERMS: Plugins[Term[Any]] = Plugins(
    what="term", package=__name__, attribute="TERM", group="dagrpo.terms", key="algorithm.terms", kind=Term
)


def computed(terms: Mapping[str, Weighed]) -> dict[str, Weighed]:
    """Return the terms of algorithm.terms whose coefficient is not 0."""
    return {name: config for name, config in terms.items() if config.coefficient}


def check_terms(params: Params) -> None:
    """Raise UserError where one of algorithm.terms cannot work with the other parameters."""
    for name, config in computed(params.algorithm.terms).items():
        term = TERMS.get(name)
        if term.needs_teacher and params.training.staleness:
            raise UserError(
                f"training.staleness is {params.training.staleness}, but no correction weighs algorithm.terms.{name}, whose divergence is "
                "that of tokens which the policy itself has sampled: take algorithm.loss: {name: on_policy_distillation}, set "
                f"algorithm.terms.{name}.coefficient to 0, or training.staleness to 0"
            )
        term.check(config, params)
