"""The factor on the loss in float16, without which small gradients would be 0 (Micikevicius et al. 2018, arXiv 1710.03740, section 3.2).

It adapts as that of torch.amp.GradScaler does: it halves after an update whose gradient is not finite, and doubles after many finite
ones in a row. It is always a power of two, so that to divide the gradients by it again rounds nothing. float32 and bfloat16 have a wider
range of exponents, and need none.
"""

from collections.abc import Iterable, Mapping

import torch

FIRST = 65_536.0  # these three are GradScaler's defaults
FACTOR = 2.0
UPDATES = 2000  # finite ones in a row, after which it doubles
LARGEST_EXPLAINED = 1.0  # a gradient that overflows float16 at this scale is too large by itself


class LossScale:
    """One for each rank: all of them see the same updates, and so have the same value."""

    def __init__(self, saved: Mapping[str, float] | None = None) -> None:
        """`saved`: what a state has of it; None: from the beginning."""
        self.value = FIRST if saved is None else saved["value"]
        self._finite = 0 if saved is None else int(saved["finite_updates"])

    @property
    def saved(self) -> dict[str, float]:
        """What a resumed run has to know, as JSON can say it."""
        return {"value": self.value, "finite_updates": self._finite}

    def unscale(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Divide the gradients of a scaled loss by the scale."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, 1 / self.value)

    def adapt(self, *, is_finite: bool) -> bool:
        """Told of each update with finite losses whether its gradient is finite. True: it is not, and the scale explains that."""
        if not is_finite:
            explained = self.value > LARGEST_EXPLAINED
            self.value, self._finite = self.value / FACTOR, 0
            return explained
        self._finite += 1
        if self._finite == UPDATES:
            self.value, self._finite = self.value * FACTOR, 0
        return False
