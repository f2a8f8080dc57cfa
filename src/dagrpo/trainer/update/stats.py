"""Sums over a step's micro-batches and ranks, and statistics of its update."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from dagrpo.trainer.model.policy import TokenLogprobs
from dagrpo.trainer.state.digest_table import StepDigests
from dagrpo.utils.distributed import World


class Sums:
    """Sums by name over the micro-batches of this rank, in double precision; they stay on the device until the step's end."""

    def __init__(self, device: torch.device) -> None:
        self._values: defaultdict[str, Tensor] = defaultdict(
            lambda: torch.zeros((), dtype=torch.float64, device=device)
        )

    def add(self, values: Mapping[str, Tensor], *, counts: bool) -> None:
        """Add the values of a micro-batch; if it does not count, register only their names."""
        for name, value in values.items():
            self._values[name] += value.detach() if counts else 0.0

    def over_ranks(self, world: World) -> dict[str, float]:
        """Return the sums over all ranks, which must have the same names."""
        totals = world.all_reduce(torch.stack(list(self._values.values())).cpu())
        return dict(zip(self._values, totals.tolist(), strict=True))


class StepTokens:
    """Values of each trained token of a step before its first update; zero where another rank has computed them."""

    def __init__(self, names: Sequence[str], values: Tensor) -> None:
        """Hold the values that have these names in BeforeUpdate. values: [names, tokens], one tensor, which is copied at once."""
        self._rows: dict[str, Tensor] = dict(zip(names, values.unbind(), strict=True))
        self._values = values

    @classmethod
    def zeros(
        cls, tokens: int, device: torch.device, *, collision: bool = False, reference_logprobs: bool = False
    ) -> Self:
        """Make room for those of this rank: the largest tensors of a step, so that only what is asked for has one."""
        asked = {"logprobs": True, "entropy": True, "collision": collision, "reference_logprobs": reference_logprobs}
        names = [name for name, is_asked in asked.items() if is_asked]
        return cls(names, torch.zeros(len(names), tokens, device=device))

    @classmethod
    def of(cls, before: "BeforeUpdate", device: torch.device) -> Self:
        """Hold the values that all ranks have computed already."""
        values = {name: getattr(before, name) for name in BeforeUpdate.__slots__}
        known = {name: each for name, each in values.items() if each is not None}
        return cls(list(known), torch.stack(list(known.values())).to(device))

    def keep(self, places: Tensor, outputs: TokenLogprobs, reference: Tensor | None = None) -> None:
        """Store the values of a micro-batch, whose tokens have the indices `places`; a filler has no tokens."""
        if not len(places):
            return
        places = places.to(outputs.logprobs.device)
        for name, row in self._rows.items():
            values: Tensor | None = reference if name == "reference_logprobs" else getattr(outputs, name)
            if values is not None:
                row[places] = values.detach().to(row.dtype)

    def old_logprobs(self, places: Tensor) -> Tensor:
        """Return the policy's logprobs before the update, of the tokens at `places`. [tokens]"""
        return self._at("logprobs", places)

    def reference_logprobs(self, places: Tensor) -> Tensor:
        """Return the reference's logprobs of the tokens at `places`, if it was run before the update. [tokens]"""
        return self._at("reference_logprobs", places)

    def of_all_ranks(self, world: World) -> "BeforeUpdate":
        """Return the values of all sequences over all ranks, on the CPU; those of this rank may be overwritten."""
        return BeforeUpdate(**dict(zip(self._rows, world.all_reduce(self._values.cpu()), strict=True)))

    def _at(self, name: str, places: Tensor) -> Tensor:
        row = self._rows[name]
        return row[places.to(row.device)]


@dataclass(frozen=True, slots=True)
class BeforeUpdate:
    """Values of all trained tokens of a step under the policy before its first update, over all ranks and on the CPU."""

    logprobs: Tensor  # [tokens]
    entropy: Tensor  # [tokens], in nats
    collision: Tensor | None = None  # [tokens]; None: no advantage needs it
    reference_logprobs: Tensor | None = None  # [tokens]; None: they are not needed before the update


SKIPPED = "gate/skipped_updates"
OVERFLOWED = "gate/overflowed_updates"  # among the skipped ones; only with a loss scale


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStats:
    """Statistics of one step's update."""

    logprobs: Tensor  # [tokens], of the policy before the step, as the trainer computes them; on the CPU
    # From here on, over the counted tokens and the mini-batches with any of them.
    entropy: float  # nats per token, of that policy
    loss: float
    kl: float  # to the reference, 0 without one
    metrics: Mapping[str, float]  # of the loss and its terms, per token
    grad_norm: float  # before clipping, mean over mini-batches
    learning_rate: float
    digests: StepDigests  # of gradients and weights
    advantages: Tensor | None = None  # [tokens], those of the update
    entropies: Tensor | None = None  # [tokens], of the policy before the step
    vision_grad_norm: float | None = None  # as grad_norm, of the vision tower alone; None: no tower is trained
    skipped: int = 0  # mini-batches whose update was skipped, since a loss or a gradient was not finite
    overflowed: int = 0  # among the skipped ones, those that the loss scale explains
    loss_scale: float | None = None  # after the step; None: the loss is not scaled


def finite_or_zero(figures: Mapping[str, float]) -> dict[str, float]:
    """Return the figures of a step with a skipped update, 0 in place of non-finite ones."""
    return {name: value if math.isfinite(value) else 0.0 for name, value in figures.items()}
