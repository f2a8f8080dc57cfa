"""What a layer keeps for its backward pass, as the formula has it and as torch saves it."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from dagrpo.checkpoints.modules import model_class_of
from dagrpo.plan.activations import per_token
from dagrpo.plan.shape import Shape
from dagrpo.trainer.attention import attend_in_float32
from dagrpo.trainer.packing import PaddedBatch
from dagrpo.trainer.policy import Policy

SEQUENCES, LENGTH = 4, 96
SIZES = {
    "vocab_size": 80,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


@pytest.mark.parametrize("widened", [False, True], ids=["as it is", "attention in float32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", [LlamaConfig, Qwen2Config, Qwen3Config])
def test_a_layer_keeps_what_the_formula_says(family: Any, dtype: torch.dtype, widened: bool) -> None:
    """By the difference of four layers and two; casting the weights keeps those of the layers, too."""
    own = {"head_dim": 32} if family is Qwen3Config else {}
    two, four = (family(num_hidden_layers=layers, **SIZES, **own) for layers in (2, 4))
    kept = (_kept(four, dtype, widened) - _kept(two, dtype, widened)) / 2
    shape = Shape.of(two)
    weights = shape.block * dtype.itemsize if dtype == torch.bfloat16 else 0
    attention = torch.float32.itemsize if widened else dtype.itemsize
    planned = per_token(shape.text, LENGTH, dtype.itemsize, attention) * SEQUENCES * LENGTH
    assert planned + weights == pytest.approx(kept, rel=0.01)


def _kept(config: Any, dtype: torch.dtype, widened: bool) -> int:
    """Bytes of all that autograd saves in a forward pass of a padded batch, but the weights themselves."""
    model = model_class_of(config)._from_config(config, dtype=torch.float32).eval()
    if widened:
        attend_in_float32(model)
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    saved: dict[int, torch.Tensor] = {}  # the tensors, so that no address is used twice

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            saved.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    ids = torch.randint(3, 60, (SEQUENCES, LENGTH))
    mask = torch.ones_like(ids)
    mask[0, -5:] = 0
    rows, columns = torch.arange(SEQUENCES), torch.full((SEQUENCES,), 10)
    batch = PaddedBatch(input_ids=ids, attention_mask=mask, rows=rows, columns=columns, targets=ids[rows, columns + 1])
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        Policy(model, None, dtype).computed(batch, 1.0)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
