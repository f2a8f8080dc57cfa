"""AdamW with linear warm-up and optional linear decay.

The stages sft and train use it.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw as adamw_update

from dagrpo.checkpoints.tensors import NAMED_DTYPES
from dagrpo.core.errors import UserError
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.model.policy import Policy
from dagrpo.trainer.model.vision_tower import tower_module
from dagrpo.utils.distributed import World
from dagrpo.utils.portable import is_portable

BETAS = (0.9, 0.999)
SCALE = "scale"  # of a group's learning rate


def adamw(
    parameters: Iterable[torch.nn.Parameter],
    weight_decay: float,
    scaled: Iterable[torch.nn.Parameter] = (),
    scale: float = 1.0,
    moments: torch.dtype = torch.float32,
) -> torch.optim.AdamW:
    """Return AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101) with the usual betas, eps 1e-8. Frozen parameters are left out.

    Each update sets its own learning rate (see `apply_gradients`); until then it is 0. For the parameters that are also
    among `scaled` it is multiplied by `scale`. `moments`: the type in which both moments are kept, float32 or bfloat16.
    """
    apart = set(scaled) if scale != 1.0 else set()
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [parameter for parameter in trained if parameter not in apart]},
        {"params": [parameter for parameter in trained if parameter in apart], SCALE: scale},
    ]
    given = [group for group in groups if group["params"]]
    # One kernel for many tensors, which copies no state. On a CPU torch's usual loop stays: fused, it rounds otherwise. Its square root,
    # MKL's, depends on the processor.
    on_gpu = all(parameter.device.type == "cuda" for parameter in trained)
    fused = True if trained and (on_gpu or is_portable()) else None
    kind = torch.optim.AdamW if moments == torch.float32 else RoundedAdamW
    return kind(given, lr=0.0, betas=BETAS, weight_decay=weight_decay, fused=fused)


def make_optimizer(policy: Policy, training: Training) -> torch.optim.AdamW:
    """Return the optimizer of GRPO, in which a vision tower may have another learning rate."""
    tower, own = tower_module(policy.model), training.vision_learning_rate
    moments = NAMED_DTYPES[training.moments_dtype]
    if tower is None or own is None:
        return adamw(policy.parameters(), training.weight_decay, moments=moments)
    scale = own / training.learning_rate
    return adamw(policy.parameters(), training.weight_decay, tower.parameters(), scale, moments)


def allocate_moments(optimizer: torch.optim.AdamW) -> None:
    """Allocate the moments of all parameters, which else come with the first update, and return the trainer's unused GPU memory."""
    dtype = torch.bfloat16 if isinstance(optimizer, RoundedAdamW) else None
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not optimizer.state[parameter]:
                optimizer.state[parameter] = first_state(parameter, dtype, fused=bool(group["fused"]))
    torch.cuda.empty_cache()


def first_state(parameter: torch.nn.Parameter, dtype: torch.dtype | None, *, fused: bool) -> dict[str, Tensor]:
    """Return the state of a parameter before its first update. A fused step counts on the device of the parameter, any other on the CPU."""
    moments = {key: torch.zeros_like(parameter, dtype=dtype, requires_grad=False) for key in ("exp_avg", "exp_avg_sq")}
    return {"step": torch.zeros((), device=parameter.device if fused else None), **moments}


class RoundedAdamW(torch.optim.AdamW):
    """AdamW that keeps its moments in bfloat16 and computes in float32, on the moments of one tensor at a time.

    They are rounded stochastically (Zamirai et al. 2020, arXiv 2010.06192, section 3.2): a second moment falls by at most 1 - 0.999
    in an update, less than half the distance of two bfloat16 numbers, so that rounded to the nearest it would never fall. The random
    bits follow from the number of updates: a resumed run rounds as an uninterrupted one.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no other closure
        """Update all parameters that have a gradient."""
        assert closure is None, "the loss is computed before"
        counts = [
            state["step"] for state in self.state.values() if state
        ]  # a resumed parameter may have no moments yet
        updates = int(torch.stack(counts).max()) if counts else 0
        generators: dict[torch.device, torch.Generator] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    device = parameter.device
                    if device not in generators:
                        generators[device] = torch.Generator(device).manual_seed(updates)
                    self._update(parameter, group, generators[device])

    def _update(self, parameter: torch.nn.Parameter, group: dict[str, Any], generator: torch.Generator) -> None:
        state, fused = self.state[parameter], bool(group["fused"])
        if not state:
            state |= first_state(parameter, torch.bfloat16, fused=fused)
        moments = [_part(state[key]) for key in ("exp_avg", "exp_avg_sq")]
        exact = [moment.float() for moment in moments]
        adamw_update(
            [_part(parameter)],
            [_part(parameter.grad)],
            [exact[0]],
            [exact[1]],
            [],
            [state["step"]],
            foreach=False,
            fused=fused,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        for moment, value in zip(moments, exact, strict=True):
            moment.copy_(stochastically_rounded(value, generator))


def stochastically_rounded(values: Tensor, generator: torch.Generator) -> Tensor:
    """Return float32 values in bfloat16, each rounded up or down so that its expectation is the value itself."""
    low = torch.randint(1 << 16, values.shape, dtype=torch.int32, device=values.device, generator=generator)
    return ((values.view(torch.int32) + low) & -(1 << 16)).view(torch.float32).bfloat16()


def _part(tensor: Any) -> Tensor:
    """Return this rank's part of a tensor that may be sharded."""
    part: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part


def warmed_up(peak: float, update: int, warmup_updates: int) -> float:
    """Return the learning rate of `update` (0-based): linear up to `peak`, then constant."""
    return peak * min(1.0, (update + 1) / max(warmup_updates, 1))


def decayed(final: float, update: int, decay_updates: int) -> float:
    """Return the factor of `update` (0-based): linear from 1 down to `final`, then constant."""
    return 1.0 - (1.0 - final) * min(1.0, update / decay_updates)


def apply_gradients(optimizer: torch.optim.AdamW, learning_rate: float, max_grad_norm: float) -> float:
    """Clip the gradient, update, clear. Returns the gradient's norm before clipping. Raises UserError if it is not finite."""
    norm = clip_gradients(optimizer, max_grad_norm)
    require_finite_gradient(norm)
    take_step(optimizer, learning_rate)
    return norm


def clip_gradients(optimizer: torch.optim.AdamW, max_grad_norm: float) -> float:
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


def require_finite_gradient(norm: float) -> None:
    """Raise UserError if a gradient's norm is not finite: the optimizer must not see it."""
    if not math.isfinite(norm):
        raise UserError(
            f"the gradient's norm is {norm}: lower the learning rate, or look at the rewards and logprobs of this step"
        )


def finite_everywhere(values: Tensor, world: World) -> bool:
    """Return True if all values of every rank are finite. A collective: all ranks get the same answer."""
    wrong = (~torch.isfinite(values.detach())).sum().double().cpu()
    return float(world.all_reduce(wrong)) == 0


FIRST_LOSS_SCALE = 65_536.0  # this and the factors of 2 are GradScaler's defaults, and so is
UPDATES_TO_DOUBLE = 2000  # finite ones in a row
LARGEST_EXPLAINED = 1.0  # a gradient that overflows float16 at this scale is too large by itself


class LossScale:
    """Loss scale of float16, which keeps small gradients from becoming 0. All ranks see the same updates, and so have the same value.

    See Micikevicius et al. 2018 (arXiv 1710.03740, section 3.2). It adapts as the one of torch.amp.GradScaler does: it halves after an
    update whose gradient is not finite, and doubles after many finite ones in a row. It is always a power of two, so that dividing the
    gradients by it again rounds nothing. float32 and bfloat16 have a wider range of exponents and need no scale.
    """

    def __init__(self, saved: Mapping[str, float] | None = None) -> None:
        """Restore the scale from `saved` of a state; None: a new run."""
        self.value = FIRST_LOSS_SCALE if saved is None else saved["value"]
        self._finite = 0 if saved is None else int(saved["finite_updates"])

    @property
    def saved(self) -> dict[str, float]:
        """Return the JSON-serialisable state."""
        return {"value": self.value, "finite_updates": self._finite}

    def unscale(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Divide the gradients of a scaled loss by the scale."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, 1 / self.value)

    def adapt(self, *, is_finite: bool) -> bool:
        """Adapt the scale after an update with finite losses; return True if its gradient is not finite because of the scale."""
        if not is_finite:
            explained = self.value > LARGEST_EXPLAINED
            self.value, self._finite = self.value / 2, 0
            return explained
        self._finite += 1
        if self._finite == UPDATES_TO_DOUBLE:
            self.value, self._finite = self.value * 2, 0
        return False
