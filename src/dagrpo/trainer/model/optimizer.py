"""AdamW with linear warm-up and optional linear decay.

The stages sft and train use it.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from dagrpo.trainer.checks import require_finite_gradient
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.model.policy import Policy
from dagrpo.trainer.model.vision_tower import tower_module

BETAS = (0.9, 0.999)
SCALE = "scale"  # of a group's learning rate


def adamw(
    parameters: Iterable[torch.nn.Parameter],
    weight_decay: float,
    scaled: Iterable[torch.nn.Parameter] = (),
    scale: float = 1.0,
) -> torch.optim.AdamW:
    """Return AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101) with the usual betas, eps 1e-8. Frozen parameters are left out.

    Each update sets its own learning rate (see `apply_gradients`); until then it is 0. For the parameters that are also
    among `scaled` it is multiplied by `scale`.
    """
    apart = set(scaled) if scale != 1.0 else set()
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [parameter for parameter in trained if parameter not in apart]},
        {"params": [parameter for parameter in trained if parameter in apart], SCALE: scale},
    ]
    given = [group for group in groups if group["params"]]
    # One kernel for many tensors, which copies no state. On a CPU torch's usual loop stays: fused, it rounds otherwise.
    fused = True if trained and all(parameter.device.type == "cuda" for parameter in trained) else None
    return torch.optim.AdamW(given, lr=0.0, betas=BETAS, weight_decay=weight_decay, fused=fused)


def policy_optimizer(policy: Policy, training: Training) -> torch.optim.AdamW:
    """Return the optimizer of GRPO, in which a vision tower may have another learning rate."""
    tower, own = tower_module(policy.model), training.vision_learning_rate
    if tower is None or own is None:
        return adamw(policy.parameters(), training.weight_decay)
    return adamw(policy.parameters(), training.weight_decay, tower.parameters(), own / training.learning_rate)


def warmed_up(peak: float, update: int, warmup_updates: int) -> float:
    """Return the learning rate of `update` (0-based): linear up to `peak`, then constant."""
    return peak * min(1.0, (update + 1) / max(warmup_updates, 1))


def decayed(final: float, update: int, decay_updates: int) -> float:
    """Return the factor of `update` (0-based): linear from 1 down to `final`, then constant."""
    return 1.0 - (1.0 - final) * min(1.0, update / decay_updates)


def apply_gradients(optimizer: torch.optim.AdamW, learning_rate: float, max_grad_norm: float) -> float:
    """Clip the gradient, update, clear. Returns the gradient's norm before clipping. Raises UserError if it is not finite."""
    norm = clipped_norm(optimizer, max_grad_norm)
    require_finite_gradient(norm)
    take_step(optimizer, learning_rate)
    return norm


def clipped_norm(optimizer: torch.optim.AdamW, max_grad_norm: float) -> float:
    """Clip the gradient over all ranks; return its norm before that."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return _over_ranks(torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm))


def gradient_norm(parameters: Iterable[torch.nn.Parameter]) -> float:
    """Return the gradient norm of `parameters` over all ranks; 0 without gradients."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return _over_ranks(torch.nn.utils.get_total_norm(gradients)) if gradients else 0.0


def _over_ranks(norm: torch.Tensor) -> float:
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def take_step(optimizer: torch.optim.AdamW, learning_rate: float) -> None:
    """Update the parameters and clear their gradients."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group.get(SCALE, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
