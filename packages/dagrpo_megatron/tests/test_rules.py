"""Every rule against tables written by hand: which Hugging Face rows a Megatron tensor holds, and in which order.

A round trip cannot notice swapped names: the way back swaps them again.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from dagrpo.utils.files import write_json
from dagrpo_megatron.config import load_config
from dagrpo_megatron.families import FAMILIES
from dagrpo_megatron.layout import Layout, layout_of

# Two query groups of two heads of width 1: queries 0 and 1 share key 0, queries 2 and 3 share key 1.
SIZES = {
    "num_hidden_layers": 2,
    "vocab_size": 3,
    "hidden_size": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 1,
    "intermediate_size": 2,
    "max_position_embeddings": 8,
}
EXPERTS = {"num_experts": 3, "num_local_experts": 3, "moe_intermediate_size": 2}

# Megatron's tensor: rows of its last layer (and its last expert), each with the name of its Hugging Face tensor.
Table = dict[str, list[tuple[str, int]]]


def _rows(name: str, *numbers: int) -> list[tuple[str, int]]:
    return [(name, number) for number in numbers]


def _grouped(kind: str) -> list[tuple[str, int]]:
    query, key, value = (f"self_attn.{which}_proj.{kind}" for which in "qkv")
    first = [(query, 0), (query, 1), (key, 0), (value, 0)]
    return [*first, (query, 2), (query, 3), (key, 1), (value, 1)]


ENDS: Table = {
    "embedding.word_embeddings.weight": _rows("model.embed_tokens.weight", 0, 1, 2),
    "decoder.final_layernorm.weight": _rows("model.norm.weight", 0, 1, 2),
    "output_layer.weight": _rows("lm_head.weight", 0, 1, 2),
}
ATTENTION: Table = {
    "self_attention.linear_qkv.layer_norm_weight": _rows("input_layernorm.weight", 0, 1, 2),
    "self_attention.linear_qkv.weight": _grouped("weight"),
    "self_attention.linear_proj.weight": _rows("self_attn.o_proj.weight", 0, 1, 2),
}
BIAS: Table = {"self_attention.linear_qkv.bias": _grouped("bias")}
NORMS: Table = {
    "self_attention.q_layernorm.weight": _rows("self_attn.q_norm.weight", 0),
    "self_attention.k_layernorm.weight": _rows("self_attn.k_norm.weight", 0),
}
# Megatron's SwiGLU applies SiLU to the first half of linear_fc1: the gate.
MLP: Table = {
    "mlp.linear_fc1.layer_norm_weight": _rows("post_attention_layernorm.weight", 0, 1, 2),
    "mlp.linear_fc1.weight": [*_rows("mlp.gate_proj.weight", 0, 1), *_rows("mlp.up_proj.weight", 0, 1)],
    "mlp.linear_fc2.weight": _rows("mlp.down_proj.weight", 0, 1, 2),
}
FUSED_MLP = MLP | {"mlp.linear_fc1.weight": _rows("mlp.gate_up_proj.weight", 0, 1, 2, 3)}
GLM4_NORMS: Table = {
    "post_self_attn_layernorm.weight": _rows("post_self_attn_layernorm.weight", 0, 1, 2),
    "post_mlp_layernorm.weight": _rows("post_mlp_layernorm.weight", 0, 1, 2),
}


def _expert_mlp(below: str, router: str, gate: str, up: str, down: str) -> Table:
    return {
        "pre_mlp_layernorm.weight": _rows("post_attention_layernorm.weight", 0, 1, 2),
        "mlp.router.weight": _rows(router, 0, 1, 2),
        "mlp.experts.experts.linear_fc1.weight": [*_rows(f"{below}{gate}", 0, 1), *_rows(f"{below}{up}", 0, 1)],
        "mlp.experts.experts.linear_fc2.weight": _rows(f"{below}{down}", 0, 1, 2),
    }


QWEN3_EXPERTS = _expert_mlp(
    "mlp.experts.2.", "mlp.gate.weight", "gate_proj.weight", "up_proj.weight", "down_proj.weight"
)
# Mixtral's w1 is the gate, w3 the up projection, w2 the down projection.
MIXTRAL_EXPERTS = _expert_mlp(
    "block_sparse_moe.experts.2.", "block_sparse_moe.gate.weight", "w1.weight", "w3.weight", "w2.weight"
)

TABLES: dict[str, Table] = {
    "LlamaForCausalLM": ATTENTION | MLP,
    "MistralForCausalLM": ATTENTION | MLP,
    "Qwen2ForCausalLM": ATTENTION | BIAS | MLP,
    "Qwen3ForCausalLM": ATTENTION | NORMS | MLP,
    "Qwen3MoeForCausalLM": ATTENTION | NORMS | QWEN3_EXPERTS,
    "MixtralForCausalLM": ATTENTION | MIXTRAL_EXPERTS,
    "GlmForCausalLM": ATTENTION | BIAS | FUSED_MLP,
    "Glm4ForCausalLM": ATTENTION | BIAS | FUSED_MLP | GLM4_NORMS,
}


def _layout(folder: Path, architecture: str, **values: bool) -> Layout:
    experts = EXPERTS if architecture in ("Qwen3MoeForCausalLM", "MixtralForCausalLM") else {}
    write_json(folder / "config.json", {"architectures": [architecture], **SIZES, **experts, **values})
    return layout_of(load_config(folder))


def _numbered(index: int, shape: tuple[int, ...]) -> Tensor:
    """A tensor whose values say which tensor, row and column they are."""
    rows = 100 * index + 10 * torch.arange(shape[0])
    return rows if len(shape) == 1 else rows[:, None] + torch.arange(shape[1])


def _table(layout: Layout) -> Table:
    """The rows of every Megatron tensor at its last layer and expert, read from its joined pieces."""
    names = list(layout.names)
    joined: dict[str, Tensor] = {}
    for piece in layout.pieces:
        whole = joined.setdefault(piece.key, torch.full(piece.size, -1))
        box = tuple(slice(start, start + size) for start, size in zip(piece.offsets, piece.sizes, strict=True))
        parts = [_numbered(names.index(name), shape) for name, shape in zip(piece.names, piece.shapes, strict=True)]
        whole[box] = piece.join(parts)
        for name, part in zip(piece.names, parts, strict=True):
            assert torch.equal(piece.part(whole[box], name), part)
    return {key: [_named(row, names) for row in _last(key, tensor)] for key, tensor in joined.items()}


def _last(key: str, tensor: Tensor) -> Tensor:
    if not key.startswith("decoder.layers."):
        return tensor
    return tensor[-1, -1] if ".experts." in key else tensor[-1]


def _named(row: Tensor, names: list[str]) -> tuple[str, int]:
    index, rest = divmod(int(row.flatten()[0]), 100)
    if row.dim():
        assert (row - row[0]).tolist() == list(range(len(row)))
    return names[index].removeprefix("model.layers.1."), rest // 10


@pytest.mark.parametrize("architecture", TABLES)
def test_a_familys_tensors_hold_the_rows_of_the_table_by_hand(architecture: str, tmp_path: Path) -> None:
    of_layers = {f"decoder.layers.{key}": rows for key, rows in TABLES[architecture].items()}
    assert _table(_layout(tmp_path, architecture)) == ENDS | of_layers


def test_every_family_has_its_table_by_hand() -> None:
    assert {name for family in FAMILIES for name in family.architectures} == TABLES.keys()


def test_a_tied_model_has_no_output_layer_and_a_glm_without_biases_none(tmp_path: Path) -> None:
    tied = _table(_layout(tmp_path, "GlmForCausalLM", attention_bias=False, tie_word_embeddings=True))
    assert not tied.keys() & {"output_layer.weight", "decoder.layers.self_attention.linear_qkv.bias"}
