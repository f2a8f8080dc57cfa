"""On-policy distillation as a term: a penalty on the reverse divergence (slime, `--use-opd`)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dagrpo.algorithms.terms import Term, Weighed
from dagrpo.algorithms.tokens import TokenBatch, TokenLoss, teacher_advantages


class Config(Weighed):
    """The divergence of the policy from algorithm.teacher, on sampled tokens. slime: 1.0."""

    coefficient: Annotated[float, Field(ge=0, le=100)] = Field(
        0.0, description="Factor of the divergence; at 0 it is not computed, and needs no teacher."
    )
    largest: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        None,
        description="Clamp the advantage to [-largest, largest], in nats (verl: 10); null: no clamp.",
    )


def distillation(batch: TokenBatch, config: Config) -> TokenLoss:
    """Return -A rho, A = sg(teacher logprob - old logprob), rho = exp(logprob - old logprob). [tokens]

    As in the loss on_policy_distillation, without its trust region. With the policy gradient -A' rho as the loss, the sum
    is that of the advantage A' + coefficient A.
    """
    return TokenLoss(per_token=-teacher_advantages(batch, config.largest) * batch.ratio_to(batch.old_logprobs))


TERM = Term(config=Config, function=distillation, needs_teacher=True)
