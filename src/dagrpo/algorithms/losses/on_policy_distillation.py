"""On-policy distillation (Lu and Thinking Machines Lab 2025; Agarwal et al. 2023, arXiv 2306.13649).

The policy samples, and a teacher scores each sampled token. Rewards and advantages are not used.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dagrpo.algorithms.losses import Loss
from dagrpo.algorithms.tokens import TokenBatch, TokenLoss, teacher_advantages
from dagrpo.core.plugin_sections import Choice


class Config(Choice):
    """Each token's advantage is the teacher's logprob minus the policy's."""

    largest: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        None,
        description="Clamp the advantage to [-largest, largest], in nats (verl: 10); null: no clamp.",
    )
    trust_region: Annotated[float, Field(gt=0, le=1)] | None = Field(
        0.2,
        description=(
            "Mask a token whose probability has fallen by more than this since it was sampled (prime-rl: 0.2); null: mask none."
        ),
    )


def on_policy_distillation(batch: TokenBatch, config: Config) -> TokenLoss:
    """Return -A rho, A = sg(teacher logprob - old logprob), rho = exp(logprob - old logprob). [tokens]

    On-policy its gradient is that of KL(policy || teacher) per token, the prefix taken as given (discount 0). With
    trust_region, 0 where exp(logprob) < exp(old logprob) - trust_region.

    Example: logprob and old logprob -1.0, the teacher's -1.5: the loss is 0.5, and the policy makes the token less likely.
    """
    loss = -teacher_advantages(batch, config.largest) * batch.ratio_to(batch.old_logprobs)
    if config.trust_region is None:
        return TokenLoss(per_token=loss)
    outside = batch.logprobs.detach().exp() < batch.old_logprobs.exp() - config.trust_region
    return TokenLoss(per_token=loss * ~outside, metrics={"clip_fraction": outside.sum()})


LOSS = Loss(config=Config, function=on_policy_distillation, needs_teacher=True)
