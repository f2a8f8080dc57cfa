"""Weights of verl's checkpoint with the adapter that it holds beside them."""

from collections.abc import Collection

from torch import Tensor

from dagrpo.checkpoints.lora_layers import NAME, PREFIX, low_rank_update
from dagrpo.checkpoints.tensors import Tensors
from dagrpo.engine.sglang.digests import LONGER

BASE = "base_layer."


class MergedAdapter:
    """Tensors under the names of the model without an adapter, each weight with its update added in float32.

    verl saves PEFT's own names: `base_model.model.<layer>.base_layer.weight` beside `<layer>.lora_A.default.weight`.
    """

    def __init__(self, tensors: Tensors, scale: float, names: Collection[str]) -> None:
        """Wrap the tensors of a checkpoint. `scale`: alpha / rank; `names`: of the model, which PEFT saves as transformers has them."""
        self._tensors = tensors
        self._scale = scale
        self._saved = {
            _published(name.removeprefix(PREFIX).replace(f".{BASE}", "."), names): name
            for name in tensors.specs
            if ".lora_" not in name
        }
        self.specs = {name: tensors.specs[saved] for name, saved in self._saved.items()}

    def read(self, name: str) -> Tensor:
        """Return a tensor, in its saved dtype."""
        saved = self._saved[name]
        tensor, layer = self._tensors.read(saved), saved.removesuffix(f"{BASE}weight")
        down, up = (f"{layer}lora_{matrix}.{NAME}.weight" for matrix in "AB")
        if layer == saved or down not in self._tensors.specs:
            return tensor
        update = low_rank_update(self._tensors.read(up), self._tensors.read(down), self._scale)
        return (tensor.float() + update).to(tensor.dtype)


def _published(name: str, names: Collection[str]) -> str:
    """Return a name as checkpoints of Qwen2.5-VL have it, unless it is among `names`."""
    parts = next(((short, long) for short, long in LONGER if name not in names and name.startswith(long)), ("", ""))
    return parts[0] + name.removeprefix(parts[1])
