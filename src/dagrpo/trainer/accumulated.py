"""What a step's update adds up over its micro-batches and over the ranks."""

import itertools
from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor

from dagrpo.distributed import World
from dagrpo.trainer.packing import NOTHING
from dagrpo.trainer.policy import TokenLogprobs


class Sums:
    """Sums by name over the micro-batches of this rank, in double; they stay on the device until the step's end."""

    def __init__(self, device: torch.device) -> None:
        self._values: defaultdict[str, Tensor] = defaultdict(
            lambda: torch.zeros((), dtype=torch.float64, device=device)
        )

    def add(self, values: Mapping[str, Tensor], part: slice) -> None:
        """Add what was measured on a micro-batch; of one without sequences only the names count."""
        for name, value in values.items():
            self._values[name] += 0.0 if part == NOTHING else value.detach()

    def over_ranks(self, world: World) -> dict[str, float]:
        """The sums over all ranks, which have the same names."""
        totals = world.all_reduce(torch.stack(list(self._values.values())).cpu())
        return dict(zip(self._values, totals.tolist(), strict=True))


class OldLogprobs:
    """Logprobs and entropy of the policy that sampled, where this rank has computed them; zero elsewhere."""

    def __init__(self, lengths: list[int], device: torch.device) -> None:
        self._ends = [0, *itertools.accumulate(lengths)]
        self._values = torch.zeros(2, self._ends[-1], device=device)  # logprobs, entropy

    def keep(self, part: slice, outputs: TokenLogprobs) -> None:
        """Note those of a micro-batch; NOTHING has none."""
        if part == NOTHING:
            return
        self._values[:, self.tokens(part)] = torch.stack([outputs.logprobs.detach(), outputs.entropy])

    def of(self, part: slice) -> Tensor:
        """Of some sequences. [tokens]"""
        return self._values[0, self.tokens(part)]

    def of_all_ranks(self, world: World) -> TokenLogprobs:
        """Of all sequences, on the CPU."""
        logprobs, entropy = world.all_reduce(self._values.cpu())
        return TokenLogprobs(logprobs=logprobs, entropy=entropy)

    def tokens(self, part: slice) -> slice:
        """Where the trained tokens of some sequences are."""
        return slice(self._ends[part.start], self._ends[part.stop])
