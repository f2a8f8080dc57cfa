"""Sums over a step's micro-batches and over the ranks."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from dagrpo.trainer.model.policy import TokenLogprobs
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

    def __init__(self, tokens: int, device: torch.device) -> None:
        self._values = torch.zeros(len(_ROWS), tokens, device=device)

    def keep(self, places: Tensor, outputs: TokenLogprobs, reference: Tensor | None = None) -> None:
        """Store the values of a micro-batch, whose tokens have the indices `places`; a filler has no tokens."""
        if not len(places):
            return
        places = places.to(self._values.device)
        rows = (outputs.logprobs, outputs.entropy, outputs.collision, reference)
        for row, values in zip(self._values, rows, strict=True):
            if values is not None:
                row[places] = values.detach().to(row.dtype)

    def old_logprobs(self, places: Tensor) -> Tensor:
        """Return the policy's logprobs before the update, of the tokens at `places`. [tokens]"""
        return self._values[0, places.to(self._values.device)]

    def reference_logprobs(self, places: Tensor) -> Tensor:
        """Return the reference's logprobs of the tokens at `places`, if it was run before the update. [tokens]"""
        return self._values[3, places.to(self._values.device)]

    def fill(self, before: "BeforeUpdate") -> None:
        """Overwrite all values with those that all ranks have computed already."""
        for row, each in zip(self._values, _ROWS, strict=True):
            row.copy_(getattr(before, each.name))

    def of_all_ranks(self, world: World) -> "BeforeUpdate":
        """Return the values of all sequences over all ranks, on the CPU."""
        return BeforeUpdate(*world.all_reduce(self._values.to("cpu", copy=True)))


@dataclass(frozen=True, slots=True)
class BeforeUpdate:
    """Values of all trained tokens of a step under the policy before its first update, over all ranks and on the CPU."""

    logprobs: Tensor  # [tokens]
    entropy: Tensor  # [tokens], in nats
    collision: Tensor  # [tokens]; zero if no term uses it
    reference_logprobs: Tensor  # [tokens]; zero if they are not needed before the update


_ROWS = fields(BeforeUpdate)
