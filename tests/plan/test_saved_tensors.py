"""What a layer keeps for its backward pass, as the formula has it and as torch saves it."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from dagrpo.checkpoints.modules import model_class_of
from dagrpo.params.runtime import Layout
from dagrpo.plan.activations import of_prompts, per_token
from dagrpo.plan.sequences import MicroBatch
from dagrpo.plan.shape import Shape
from dagrpo.trainer.attention import attend_in_float32
from dagrpo.trainer.packing import Batch, PaddedBatch, TokenSequences
from dagrpo.trainer.policy import Policy
from dagrpo.trainer.shared_prompts import SharedPrompts

SEQUENCES, LENGTH = 4, 96
PROMPT = 40  # tokens of a prompt that two sequences share
SIZES = {
    "vocab_size": 80,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}

PROMPTS = SharedPrompts(
    input_ids=torch.full((2, PROMPT), 5),
    attention_mask=torch.tensor([[1] * PROMPT, [1] * (PROMPT - 3) + [0] * 3]),
    owners=torch.tensor([0, 0, 1, 1]),
)


@pytest.mark.parametrize("widened", [False, True], ids=["as it is", "attention in float32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", [LlamaConfig, Qwen2Config, Qwen3Config])
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_a_layer_keeps_what_the_formula_says(family: Any, dtype: torch.dtype, widened: bool, layout: Layout) -> None:
    """By the difference of four layers and two; casting the weights keeps those of the layers, too."""
    own = {"head_dim": 32} if family is Qwen3Config else {}
    two, four = (family(num_hidden_layers=layers, **SIZES, **own) for layers in (2, 4))
    widened = widened or (layout == "packed" and dtype == torch.bfloat16)  # packed it always is, on a CPU
    kept = (_kept(four, dtype, widened, layout) - _kept(two, dtype, widened, layout)) / 2
    shape = Shape.of(two)
    weights = shape.block * dtype.itemsize if dtype == torch.bfloat16 else 0
    attention = torch.float32.itemsize if widened else dtype.itemsize
    each = per_token(shape.text, LENGTH, dtype.itemsize, attention, packed=layout == "packed")
    planned = each * SEQUENCES * LENGTH
    assert planned + weights == pytest.approx(kept, rel=0.01)


@pytest.mark.parametrize("widened", [False, True], ids=["as it is", "attention in float32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", [LlamaConfig, Qwen2Config, Qwen3Config])
def test_a_layer_keeps_shared_prompts_and_their_keys_for_each_sequence(
    family: Any, dtype: torch.dtype, widened: bool
) -> None:
    own = {"head_dim": 32} if family is Qwen3Config else {}
    two, four = (family(num_hidden_layers=layers, **SIZES, **own) for layers in (2, 4))
    kept = (_kept(four, dtype, widened, "padded", PROMPTS) - _kept(two, dtype, widened, "padded", PROMPTS)) / 2
    shape, tokens = Shape.of(two), SEQUENCES * LENGTH
    batch = MicroBatch(
        sequences=SEQUENCES,
        tokens=tokens,
        trained=SEQUENCES,
        longest=PROMPT + LENGTH,
        number=1,
        prompts=len(PROMPTS.input_ids),
        prompt=PROMPT,
    )
    weights = shape.block * dtype.itemsize if dtype == torch.bfloat16 else 0
    attention = torch.float32.itemsize if widened else dtype.itemsize
    alone = per_token(shape.text, batch.longest, dtype.itemsize, attention) * tokens
    planned = alone + of_prompts(shape.text, batch, dtype.itemsize, attention)
    assert planned + weights == pytest.approx(kept, rel=0.01)


@pytest.mark.parametrize("key_heads", [2, 4])
@pytest.mark.parametrize(("prompt", "written", "shorter"), [(40, 96, 0), (40, 96, 7), (90, 41, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_keeps_of_packed_rows_with_shared_prompts_what_the_formula_says(
    dtype: torch.dtype, prompt: int, written: int, shorter: int, key_heads: int
) -> None:
    """Prompts shorter and longer than what follows them; each sample of a group is so many tokens shorter than the one before."""
    sizes = SIZES | {"num_key_value_heads": key_heads}
    two, four = (LlamaConfig(num_hidden_layers=layers, **sizes) for layers in (2, 4))
    ids = [[first] * prompt + [3 + sample] * (written - shorter * sample) for first in (1, 2) for sample in range(4)]
    sequences = TokenSequences.of(ids, [[False] * prompt + [True] * (len(each) - prompt) for each in ids])
    batch = sequences.packed(range(len(ids)), torch.device("cpu"), share_prompts=True)
    kept = (_kept_of(four, dtype, batch) - _kept_of(two, dtype, batch)) / 2
    shape = Shape.of(two)
    planned = MicroBatch(
        sequences=len(ids),
        tokens=sum(len(each) - prompt + 1 for each in ids),
        trained=1,
        longest=prompt + written,
        number=1,
        prompts=2,
        prompt=prompt - 1,
    )
    attention = torch.float32.itemsize  # packed it always is, on a CPU
    layer = per_token(shape.text, planned.longest, dtype.itemsize, attention, packed=True) * planned.tokens
    layer += of_prompts(shape.text, planned, dtype.itemsize, attention, packed=True)
    weights = shape.block * dtype.itemsize if dtype == torch.bfloat16 else 0
    assert layer + weights == pytest.approx(kept, rel=0.02)


def _kept_of(config: Any, dtype: torch.dtype, batch: Batch) -> int:
    """Of a batch that is packed."""
    policy = Policy(model_class_of(config)._from_config(config, dtype=torch.float32).eval(), None, dtype)
    policy.take_packed()
    return _saved(policy, batch)


def _kept(config: Any, dtype: torch.dtype, widened: bool, layout: Layout, prompts: SharedPrompts | None = None) -> int:
    """Bytes of all that autograd saves in a forward pass, but the weights themselves. `prompts`: of a padded batch."""
    model = model_class_of(config)._from_config(config, dtype=torch.float32).eval()
    if widened:
        attend_in_float32(model)
    ids = torch.randint(3, 60, (SEQUENCES, LENGTH))
    mask = torch.ones_like(ids)
    mask[0, -5:] = 0
    rows, columns = torch.arange(SEQUENCES), torch.full((SEQUENCES,), 10)
    targets = ids[rows, columns + 1]
    batch: Batch = PaddedBatch(
        input_ids=ids, attention_mask=mask, rows=rows, columns=columns, targets=targets, prompts=prompts
    )
    policy = Policy(model, None, dtype)
    if layout == "packed":
        policy.take_packed()
        masks = [[False] * 10 + [True] + [False] * (LENGTH - 11)] * SEQUENCES
        batch = TokenSequences.of(ids.tolist(), masks).packed(range(SEQUENCES), torch.device("cpu"))
    return _saved(policy, batch)


def _saved(policy: Policy, batch: Batch) -> int:
    own = {weight.untyped_storage().data_ptr() for weight in policy.model.parameters()}
    saved: dict[int, torch.Tensor] = {}  # the tensors, so that no address is used twice

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            saved.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        policy.computed(batch, 1.0)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
