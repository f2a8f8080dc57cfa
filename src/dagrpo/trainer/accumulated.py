"""What a step's update adds up over its micro-batches and over the ranks."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from dagrpo.distributed import World
from dagrpo.trainer.policy import TokenLogprobs


class Sums:
    """Sums by name over the micro-batches of this rank, in double; they stay on the device until the step's end."""

    def __init__(self, device: torch.device) -> None:
        self._values: defaultdict[str, Tensor] = defaultdict(
            lambda: torch.zeros((), dtype=torch.float64, device=device)
        )

    def add(self, values: Mapping[str, Tensor], *, counts: bool) -> None:
        """Add what was measured on a micro-batch; of one that does not count, the names alone."""
        for name, value in values.items():
            self._values[name] += value.detach() if counts else 0.0

    def over_ranks(self, world: World) -> dict[str, float]:
        """The sums over all ranks, which have the same names."""
        totals = world.all_reduce(torch.stack(list(self._values.values())).cpu())
        return dict(zip(self._values, totals.tolist(), strict=True))


class StepTokens:
    """What is known of each trained token of a step before its first update, where this rank has computed it; else zero."""

    def __init__(self, tokens: int, device: torch.device) -> None:
        self._values = torch.zeros(len(_ROWS), tokens, device=device)

    def keep(self, places: Tensor, outputs: TokenLogprobs, reference: Tensor | None = None) -> None:
        """Note those of a micro-batch, whose tokens stand at `places`; a filler has none."""
        if not len(places):
            return
        places = places.to(self._values.device)
        rows = (outputs.logprobs, outputs.entropy, outputs.collision, reference)
        for row, values in zip(self._values, rows, strict=True):
            if values is not None:
                row[places] = values.detach().to(row.dtype)

    def old_logprobs(self, places: Tensor) -> Tensor:
        """Of the tokens at some places. [tokens]"""
        return self._values[0, places.to(self._values.device)]

    def reference_logprobs(self, places: Tensor) -> Tensor:
        """The same of the reference, where it was run before the update. [tokens]"""
        return self._values[3, places.to(self._values.device)]

    def fill(self, before: "BeforeUpdate") -> None:
        """Take what all ranks have computed already."""
        for row, each in zip(self._values, _ROWS, strict=True):
            row.copy_(getattr(before, each.name))

    def of_all_ranks(self, world: World) -> "BeforeUpdate":
        """Of all sequences, on the CPU."""
        return BeforeUpdate(*world.all_reduce(self._values.to("cpu", copy=True)))


@dataclass(frozen=True, slots=True)
class BeforeUpdate:
    """All trained tokens of a step, over all ranks, under the policy before its first update. On the CPU."""

    logprobs: Tensor  # [tokens]
    entropy: Tensor  # [tokens], in nats
    collision: Tensor  # [tokens]; zero where nothing asks for it
    reference_logprobs: Tensor  # [tokens]; zero where nothing asks for them so early


_ROWS = fields(BeforeUpdate)
