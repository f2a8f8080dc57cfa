"""Prints what each rank of a divided layer holds, as SGLang's own layers load it: one line of JSON for each number of ranks.

A process of its own, because importing SGLang takes seconds and changes the environment.
"""

import json
import sys

import torch
from torch import Tensor

from dagrpo.engine.sglang.digests import digest_on_cpu

WIDTH, HEAD, HEADS, KEY_VALUE_HEADS, INNER, VOCABULARY = 24, 4, 12, 6, 48, 200
LAYER = "model.layers.0"
SHAPES = {
    **{
        f"{LAYER}.self_attn.{part}_proj.{kind}": (rows, WIDTH) if kind == "weight" else (rows,)
        for part, rows in (("q", HEADS * HEAD), ("k", KEY_VALUE_HEADS * HEAD), ("v", KEY_VALUE_HEADS * HEAD))
        for kind in ("weight", "bias")
    },
    f"{LAYER}.self_attn.o_proj.weight": (WIDTH, HEADS * HEAD),
    f"{LAYER}.self_attn.o_proj.bias": (WIDTH,),
    f"{LAYER}.mlp.gate_proj.weight": (INNER, WIDTH),
    f"{LAYER}.mlp.up_proj.weight": (INNER, WIDTH),
    f"{LAYER}.mlp.down_proj.weight": (WIDTH, INNER),
    "model.embed_tokens.weight": (VOCABULARY, WIDTH),
}


def weights() -> dict[str, Tensor]:
    """Return the tensors of a checkpoint, the same in every process."""
    drawn = torch.Generator().manual_seed(7)
    return {name: torch.randn(shape, generator=drawn) for name, shape in SHAPES.items()}


def held(checkpoint: dict[str, Tensor], rank: int, ranks: int) -> dict[str, str]:
    """Return the digests of what one rank holds, by SGLang's names."""
    from sglang.srt.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
    from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding
    from sglang.srt.runtime_context import get_parallel

    with get_parallel().override(tp_rank=rank, tp_size=ranks):
        qkv = QKVParallelLinear(WIDTH, HEAD, HEADS, KEY_VALUE_HEADS, bias=True)
        outputs = RowParallelLinear(HEADS * HEAD, WIDTH, bias=True)
        gate_up = MergedColumnParallelLinear(WIDTH, [INNER, INNER], bias=False)
        down = RowParallelLinear(INNER, WIDTH, bias=False)
        tokens = VocabParallelEmbedding(VOCABULARY, WIDTH)
        for kind in ("weight", "bias"):
            for part in "qkv":
                qkv.weight_loader(getattr(qkv, kind), checkpoint[f"{LAYER}.self_attn.{part}_proj.{kind}"], part)
            outputs.weight_loader(getattr(outputs, kind), checkpoint[f"{LAYER}.self_attn.o_proj.{kind}"])
        for number, part in enumerate(("gate", "up")):
            gate_up.weight_loader(gate_up.weight, checkpoint[f"{LAYER}.mlp.{part}_proj.weight"], number)
        down.weight_loader(down.weight, checkpoint[f"{LAYER}.mlp.down_proj.weight"])
        tokens.weight_loader(tokens.weight, checkpoint["model.embed_tokens.weight"])
    tensors = {
        f"{LAYER}.self_attn.qkv_proj.weight": qkv.weight,
        f"{LAYER}.self_attn.qkv_proj.bias": qkv.bias,
        f"{LAYER}.self_attn.o_proj.weight": outputs.weight,
        f"{LAYER}.self_attn.o_proj.bias": outputs.bias,
        f"{LAYER}.mlp.gate_up_proj.weight": gate_up.weight,
        f"{LAYER}.mlp.down_proj.weight": down.weight,
        "model.embed_tokens.weight": tokens.weight,
    }
    return {name: digest_on_cpu(tensor.detach()) for name, tensor in tensors.items()}


def main() -> None:
    checkpoint = weights()
    for ranks in map(int, sys.argv[1:]):
        print(json.dumps([held(checkpoint, rank, ranks) for rank in range(ranks)]))


if __name__ == "__main__":
    main()
