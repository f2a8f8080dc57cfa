"""Small batches, for formulas that are computed by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from dagrpo.algorithms.reward_batch import PolicyTokens, RewardBatch
from dagrpo.algorithms.tokens import TokenBatch


def grouped(rewards: Sequence[float], *sizes: int, lengths: Sequence[int] | None = None, **changes: Any) -> RewardBatch:
    """Rewards in groups of one size, or of the sizes that are given; each trajectory has one token, or so many as `lengths`."""
    counts = list(sizes) if len(sizes) > 1 else [sizes[0]] * (len(rewards) // sizes[0])
    assert sum(counts) == len(rewards)
    return RewardBatch(
        rewards=torch.tensor(rewards, dtype=torch.float64),
        group=torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)),
        groups=len(counts),
        trajectory=torch.arange(len(rewards)).repeat_interleave(torch.tensor(lengths or [1] * len(rewards))),
        **changes,
    )


def everything(rewards: Sequence[float], *sizes: int, lengths: Sequence[int] | None = None) -> RewardBatch:
    """As `grouped`, with all that an estimator may need: tokens of a policy, and components and greedy rewards of its own.

    Half of a reward is one component and half another; the greedy reward is the first of each group.
    """
    batch = grouped(rewards, *sizes, lengths=lengths)
    first = torch.tensor([batch.group.tolist().index(group) for group in range(batch.groups)])
    probabilities = 0.2 + 0.5 / (1 + batch.position.double() + batch.rewards[batch.trajectory].abs())
    return replace(
        batch,
        components={"accuracy": batch.rewards / 2, "format": batch.rewards / 2},
        weights={"accuracy": 0.5, "format": 0.5},
        greedy_rewards=batch.rewards[first],
        policy=PolicyTokens(logprobs=probabilities.log(), collision=probabilities**2 + 0.01),
    )


def ratios(ratios: Sequence[Sequence[float]], advantages: Sequence[float], **changes: Any) -> TokenBatch:
    """Sequences of tokens, each by its ratio to the old policy, whose logprobs are all -1; one advantage per sequence."""
    flat = torch.tensor([ratio for sequence in ratios for ratio in sequence], dtype=torch.float64)
    sequence = torch.tensor([row for row, tokens in enumerate(ratios) for _ in tokens])
    old = torch.full_like(flat, -1.0)
    values: dict[str, Any] = {
        "logprobs": (old + flat.log()).requires_grad_(),
        "old_logprobs": old,
        "rollout_logprobs": old,
        "reference_logprobs": None,
        "entropy": torch.zeros_like(flat),
        "advantages": torch.tensor(advantages, dtype=torch.float64)[sequence],
        "positive": (torch.tensor(advantages) > 0)[sequence],
        "sequence": sequence,
        "sequences": len(ratios),
    }
    return TokenBatch(**values | changes)
