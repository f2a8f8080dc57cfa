"""A pull towards the policy that sampled (Kimi Team 2026, Kimi K2.5, arXiv 2602.02276, the objective of its reinforcement learning)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dagrpo.algorithms.terms import Term, Weighed
from dagrpo.algorithms.tokens import LOG_RATIO_LIMIT, TokenBatch, TokenLoss


class Config(Weighed):
    """The square of each token's log-ratio to the engine's logprob. Kimi K2.5 calls the coefficient tau; prime-rl: 0.001."""

    coefficient: Annotated[float, Field(ge=0, le=100)] = Field(
        0.0, description="Factor of the squared log-ratio; at 0 it is not computed."
    )


def squared_log_ratio(batch: TokenBatch, config: Config) -> TokenLoss:
    """Return (logprob - rollout logprob)^2, in nats squared. [tokens]

    Its gradient is twice the log-ratio: it draws each token back to the probability with which the engine sampled it.
    """
    log_ratio = (batch.logprobs - batch.rollout_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    squared = log_ratio**2
    return TokenLoss(per_token=squared, metrics={"squared_log_ratio": squared.detach().sum()})


TERM = Term(config=Config, function=squared_log_ratio)
