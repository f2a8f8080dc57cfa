"""AdamW with a linear warm-up, and a linear decay where one is asked for, as sft and train use it."""

from collections.abc import Iterable

import torch
from torch.distributed.tensor import DTensor

from dagrpo.trainer.gates import require_finite_gradient

BETAS = (0.9, 0.999)


def adamw(parameters: Iterable[torch.nn.Parameter], weight_decay: float) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101) with the usual betas, eps 1e-8.

    Each update brings its own learning rate (see `apply_gradients`); until then it is 0.
    """
    return torch.optim.AdamW(list(parameters), lr=0.0, betas=BETAS, weight_decay=weight_decay)


def warmed_up(peak: float, update: int, warmup_updates: int) -> float:
    """The learning rate of the update numbered from 0: linear up to `peak`, then constant."""
    return peak * min(1.0, (update + 1) / max(warmup_updates, 1))


def decayed(final: float, update: int, decay_updates: int) -> float:
    """The factor of the update numbered from 0: linear from 1 down to `final`, then constant."""
    return 1.0 - (1.0 - final) * min(1.0, update / decay_updates)


def apply_gradients(optimizer: torch.optim.AdamW, learning_rate: float, max_grad_norm: float) -> float:
    """Clip, step, clear. Returns the gradient's norm before clipping; UserError when that is not finite."""
    norm = clipped_norm(optimizer, max_grad_norm)
    require_finite_gradient(norm)
    take_step(optimizer, learning_rate)
    return norm


def clipped_norm(optimizer: torch.optim.AdamW, max_grad_norm: float) -> float:
    """Clip the gradient, over all ranks; its norm before that."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    total = torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm)
    return float(total.full_tensor() if isinstance(total, DTensor) else total)  # DTensor: over all ranks


def take_step(optimizer: torch.optim.AdamW, learning_rate: float) -> None:
    """Step, clear."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
