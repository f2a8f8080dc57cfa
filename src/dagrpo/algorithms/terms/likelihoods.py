"""Terms of logprobs: imitation, a pull, distillation."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dagrpo.algorithms.terms import Term, Weighed
from dagrpo.algorithms.tokens import LOG_RATIO_LIMIT, TokenBatch, TokenLoss, teacher_advantages


# The negative log-likelihood of right answers beside the policy loss (VAPO, Yue et al. 2025, arXiv 2504.05118, equation 13).
class PositiveNll(Weighed):
    """Imitation of the policy's own right answers. VAPO: 0.1."""

    coefficient: Annotated[float, Field(ge=0, le=100)] = Field(
        0.0, description="Factor of the negative log-likelihood; at 0 it is not computed."
    )


def positive_nll(batch: TokenBatch, config: PositiveNll) -> TokenLoss:
    """Return -logprob on the tokens of sequences with a right answer, 0 on all others. [tokens]

    The mean is over those tokens alone, whatever share of the mini-batch they are.
    """
    return TokenLoss(per_token=-batch.logprobs * batch.positive)


POSITIVE_NLL = Term(config=PositiveNll, function=positive_nll, positive_only=True)


# A pull towards the policy that sampled (Kimi Team 2026, Kimi K2.5, arXiv 2602.02276, the objective of its reinforcement learning).
class SquaredLogRatio(Weighed):
    """The square of each token's log-ratio to the engine's logprob. Kimi K2.5 calls the coefficient tau; prime-rl: 0.001."""

    coefficient: Annotated[float, Field(ge=0, le=100)] = Field(
        0.0, description="Factor of the squared log-ratio; at 0 it is not computed."
    )


def squared_log_ratio(batch: TokenBatch, config: SquaredLogRatio) -> TokenLoss:
    """Return (logprob - rollout logprob)^2, in nats squared. [tokens]

    Its gradient is twice the log-ratio: it draws each token back to the probability with which the engine sampled it.
    """
    log_ratio = (batch.logprobs - batch.rollout_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    squared = log_ratio**2
    return TokenLoss(per_token=squared, metrics={"squared_log_ratio": squared.detach().sum()})


SQUARED_LOG_RATIO = Term(config=SquaredLogRatio, function=squared_log_ratio)


# On-policy distillation as a term: a penalty on the reverse divergence (slime, `--use-opd`).
class Distillation(Weighed):
    """The divergence of the policy from algorithm.teacher, on sampled tokens. slime: 1.0."""

    coefficient: Annotated[float, Field(ge=0, le=100)] = Field(
        0.0, description="Factor of the divergence; at 0 it is not computed, and needs no teacher."
    )
    largest: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        None,
        description="Clamp the advantage to [-largest, largest], in nats (verl: 10); null: no clamp.",
    )


def distillation(batch: TokenBatch, config: Distillation) -> TokenLoss:
    """Return -A rho, A = sg(teacher logprob - old logprob), rho = exp(logprob - old logprob). [tokens]

    As in the loss on_policy_distillation, without its trust region. With the policy gradient -A' rho as the loss, the sum
    is that of the advantage A' + coefficient A.
    """
    return TokenLoss(per_token=-teacher_advantages(batch, config.largest) * batch.ratio_to(batch.old_logprobs))


DISTILLATION = Term(config=Distillation, function=distillation, needs_teacher=True)
