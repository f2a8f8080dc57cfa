"""Advantages of distillation: a teacher's logprob minus the sampling policy's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagrpo.algorithms.tokens import TokenBatch

if TYPE_CHECKING:
    import torch


def teacher_advantages(batch: TokenBatch, largest: float | None) -> torch.Tensor:
    """teacher logprob - old logprob, within -largest and largest where that is given; no gradient. [tokens]

    Its mean over tokens that the policy has sampled is an estimate of -KL(policy || teacher), the reverse divergence.
    """
    assert batch.teacher_logprobs is not None, "algorithm.teacher is there for whatever reads it"
    advantages = (batch.teacher_logprobs - batch.old_logprobs).detach()
    return advantages if largest is None else advantages.clamp(-largest, largest)
