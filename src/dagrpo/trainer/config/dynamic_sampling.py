"""Section `training.dynamic_sampling`."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.section import Section

MOST_ROUNDS = 1000


class DynamicSampling(Section):
    """DAPO's dynamic sampling (arXiv 2503.14476, section 3.2), off by default."""

    max_rounds: Annotated[int, Field(ge=1, le=MOST_ROUNDS)] = Field(
        1,
        description="Most rounds of sampling in a step. Another round samples new prompts while the batch lacks groups "
        "whose samples differ. After the last round, groups without a difference fill the batch; a step that "
        "finds no group with one ends the run.",
    )
    oversampling: Annotated[float, Field(ge=1, le=100)] = Field(
        1.0,
        description="Prompts that a round samples for each group that the batch lacks; surplus groups are discarded (DAPO: 3).",
    )
    spread_of: Literal["reward", "accuracy"] | None = Field(
        "reward",
        description="Value that must differ between the samples of a prompt: the reward, or whether the answer is right "
        "(DAPO). null: none, so that max_aborts alone decides which prompts are in the batch.",
    )
    max_aborts: Annotated[int, Field(ge=0, le=1000)] = Field(
        0,
        description="Times in a row that the group of a prompt may be aborted. Above 0, a round ends as soon as the "
        "batch is full: unfinished groups are aborted, and the next step samples their prompts first. A "
        "prompt that has been aborted this often is waited for. 0: a round waits for its longest completion.",
    )
    partial_rollouts: bool = Field(
        False,
        description="Continue aborted answers in the next step by their tokens, with the weights of then, instead of starting "
        "again: an answer has tokens of at most max_aborts + 1 policies. Attempts with tools or a simulated user start again.",
    )

    @property
    def is_on(self) -> bool:
        """Return True if a step may sample more prompts than its batch has."""
        return self.max_rounds > 1 or self.oversampling > 1

    @property
    def wants_spread(self) -> bool:
        """Return True if groups are discarded because their samples do not differ."""
        return self.is_on and self.spread_of is not None

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.max_aborts and self.oversampling == 1:
            raise UserError(
                f"training.dynamic_sampling.max_aborts is {self.max_aborts}, but with oversampling 1 a round samples no more "
                "prompts than the batch lacks, so that there is nothing to cut off: raise oversampling, such as to 1.25, or set "
                "max_aborts to 0"
            )
        if self.partial_rollouts and not self.max_aborts:
            raise UserError(
                "training.dynamic_sampling.partial_rollouts is true, but max_aborts is 0, so that no answer is aborted: raise max_aborts, "
                "or set partial_rollouts to false"
            )
        if self.is_on and self.spread_of is None and not self.max_aborts:
            raise UserError(
                "training.dynamic_sampling.spread_of is null, so that any group will do, and the surplus of its max_rounds and "
                "oversampling would be sampled for nothing: set max_aborts to 1 or more, or max_rounds and oversampling to 1"
            )
        return self
