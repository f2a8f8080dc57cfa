"""Terms that are added to any loss, one small file each: its Config with a coefficient, its formula, and both as TERM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import Field

from dagrpo.algorithms.tokens import TokenBatch, TokenLoss
from dagrpo.params.base import Factor, Section
from dagrpo.plugins import Plugins


class Weighed(Section):
    """Parameters of one term. Its Config adds keys of its own."""

    coefficient: Factor = Field(0.0, description="Factor of the term in the loss; at 0 it is not computed.")


ConfigType = TypeVar("ConfigType", bound=Weighed)


class Coefficient(NamedTuple):
    """What a term is multiplied by in one step; JSON has it as a list."""

    applied: float
    kept: float  # what `adapted` goes on from: not the one above where the term is not applied for a while


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


TERMS: Plugins[Term[Any]] = Plugins(
    what="term", package=__name__, attribute="TERM", group="dagrpo.terms", key="algorithm.terms", kind=Term
)


def computed(terms: Mapping[str, Weighed]) -> dict[str, Weighed]:
    """Those of algorithm.terms that are added to the loss."""
    return {name: config for name, config in terms.items() if config.coefficient}
