"""Loss scale of float16: keeps small gradients from becoming 0.

See Micikevicius et al. 2018 (arXiv 1710.03740, section 3.2). It adapts as that of torch.amp.GradScaler does: it halves after an
update whose gradient is not finite, and doubles after many finite ones in a row. It is always a power of two, so that dividing the
gradients by it again rounds nothing. float32 and bfloat16 have a wider range of exponents and need no scale.
"""

from collections.abc import Iterable, Mapping

import torch

FIRST = 65_536.0  # these three are GradScaler's defaults
FACTOR = 2.0
UPDATES = 2000  # finite ones in a row, after which it doubles
LARGEST_EXPLAINED = 1.0  # a gradient that overflows float16 at this scale is too large by itself


class LossScale:
    """Loss scale of a rank: all ranks see the same updates, and so have the same value."""

    def __init__(self, saved: Mapping[str, float] | None = None) -> None:
        """Restore the scale from `saved` of a state; None: a new run."""
        self.value = FIRST if saved is None else saved["value"]
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
            self.value, self._finite = self.value / FACTOR, 0
            return explained
        self._finite += 1
        if self._finite == UPDATES:
            self.value, self._finite = self.value * FACTOR, 0
        return False
