"""Tables of model families, one for each.

A tensor that no rule names is an error, so a table is either right or refuses.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dagrpo.core.errors import UserError

Dimension = Literal["vocabulary", "hidden", "query", "key", "head", "ffn", "gate_and_up", "experts", "expert_ffn"]
Place = Literal["model", "layer", "expert"]
Condition = Literal["untied", "attention_bias"]  # attributes of Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Rule for one Megatron tensor: its key, and the Hugging Face tensors whose rows it holds, one after the other.

    `place` says what the names lie below: nothing, `decoder.layers.` and `model.layers.N.`, or an expert of a layer.
    With `interleaved`, the rows of query, key and value alternate by query group: all queries of the first group, its
    key, its value, then those of the second group.
    """

    place: Place
    megatron: str
    names: tuple[str, ...]
    rows: tuple[Dimension, ...]  # one for each name
    columns: tuple[Dimension, ...] = ()
    interleaved: bool = False
    only_if: Condition | None = None
    also_known_as: tuple[str, ...] = ()  # keys that Megatron writes instead of `megatron`


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Table of one family: the architectures of config.json that it serves, its rules, its own Megatron arguments.

    `experts` is where its experts lie below a layer, in the Hugging Face layout; `defaults` are the values that a config.json of
    it may leave out.
    """

    name: str
    architectures: tuple[str, ...]
    rules: tuple[Rule, ...]
    arguments: tuple[str, ...] = ()
    experts: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)


def whole(megatron: str, name: str, *shape: Dimension, only_if: Condition | None = None) -> Rule:
    """Return the rule for a tensor outside the layers, copied as it is."""
    return Rule(place="model", megatron=megatron, names=(name,), rows=shape[:1], columns=shape[1:], only_if=only_if)


def layer(megatron: str, name: str, *shape: Dimension, also_known_as: tuple[str, ...] = ()) -> Rule:
    """Return the rule for a tensor of every layer, copied as it is."""
    return Rule(
        place="layer",
        megatron=megatron,
        names=(name,),
        rows=shape[:1],
        columns=shape[1:],
        also_known_as=also_known_as,
    )


def gate_and_up(megatron: str, gate: str, up: str) -> Rule:
    """Return the rule for the two halves of a gated MLP of every layer, gate first."""
    return Rule(place="layer", megatron=megatron, names=(gate, up), rows=("ffn", "ffn"), columns=("hidden",))


def query_key_value(kind: Literal["weight", "bias"], only_if: Condition | None = None) -> Rule:
    """Return the rule for the projections of every layer's attention, interleaved by query group."""
    return Rule(
        place="layer",
        megatron=f"self_attention.linear_qkv.{kind}",
        names=tuple(f"self_attn.{part}_proj.{kind}" for part in "qkv"),
        rows=("query", "key", "key"),
        columns=("hidden",) if kind == "weight" else (),
        interleaved=True,
        only_if=only_if,
    )


def experts(gate: str, up: str, down: str) -> tuple[Rule, Rule]:
    """Return the rules for the gated MLP of every expert of every layer."""
    first = Rule(
        place="expert",
        megatron="mlp.experts.experts.linear_fc1.weight",
        names=(f"{gate}.weight", f"{up}.weight"),
        rows=("expert_ffn", "expert_ffn"),
        columns=("hidden",),
    )
    second = Rule(
        place="expert",
        megatron="mlp.experts.experts.linear_fc2.weight",
        names=(f"{down}.weight",),
        rows=("hidden",),
        columns=("expert_ffn",),
    )
    return first, second


ENDS = (
    whole("embedding.word_embeddings.weight", "model.embed_tokens.weight", "vocabulary", "hidden"),
    whole("decoder.final_layernorm.weight", "model.norm.weight", "hidden"),
    whole("output_layer.weight", "lm_head.weight", "vocabulary", "hidden", only_if="untied"),
)
ATTENTION = (
    layer("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight", "hidden"),
    query_key_value("weight"),
    layer("self_attention.linear_proj.weight", "self_attn.o_proj.weight", "hidden", "query"),
)
QUERY_KEY_NORMS = (
    layer("self_attention.q_layernorm.weight", "self_attn.q_norm.weight", "head"),
    layer("self_attention.k_layernorm.weight", "self_attn.k_norm.weight", "head"),
)
DENSE_MLP = (
    layer("mlp.linear_fc1.layer_norm_weight", "post_attention_layernorm.weight", "hidden"),
    gate_and_up("mlp.linear_fc1.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight"),
    layer("mlp.linear_fc2.weight", "mlp.down_proj.weight", "hidden", "ffn"),
)
FUSED_MLP = (
    layer("mlp.linear_fc1.layer_norm_weight", "post_attention_layernorm.weight", "hidden"),
    layer("mlp.linear_fc1.weight", "mlp.gate_up_proj.weight", "gate_and_up", "hidden"),
    layer("mlp.linear_fc2.weight", "mlp.down_proj.weight", "hidden", "ffn"),
)
EXPERTS_NORM = layer(
    "pre_mlp_layernorm.weight",
    "post_attention_layernorm.weight",
    "hidden",
    also_known_as=("mlp.linear_fc1.layer_norm_weight",),  # how Megatron's local layers name it
)

LLAMA = Family(
    name="Llama 2 and 3, DeepSeek-LLM",
    architectures=("LlamaForCausalLM",),
    rules=(*ENDS, *ATTENTION, *DENSE_MLP),
)

MISTRAL = Family(
    name="Mistral",
    architectures=("MistralForCausalLM",),
    rules=LLAMA.rules,
    defaults={"num_key_value_heads": 8, "sliding_window": 4096},
)

QWEN2 = Family(
    name="Qwen2 and Qwen2.5",
    architectures=("Qwen2ForCausalLM",),
    rules=(*ENDS, *ATTENTION, query_key_value("bias"), *DENSE_MLP),
    arguments=("--add-qkv-bias",),
    defaults={"num_key_value_heads": 32},
)

QWEN3 = Family(
    name="Qwen3",
    architectures=("Qwen3ForCausalLM",),
    rules=(*ENDS, *ATTENTION, *QUERY_KEY_NORMS, *DENSE_MLP),
    arguments=("--qk-layernorm",),
    defaults={"num_key_value_heads": 32, "head_dim": 128},
)

QWEN3_MOE = Family(
    name="Qwen3 mixture of experts",
    architectures=("Qwen3MoeForCausalLM",),
    rules=(
        *ENDS,
        *ATTENTION,
        *QUERY_KEY_NORMS,
        EXPERTS_NORM,
        layer("mlp.router.weight", "mlp.gate.weight", "experts", "hidden"),
        *experts("gate_proj", "up_proj", "down_proj"),
    ),
    arguments=("--qk-layernorm",),
    experts="mlp.experts",
    defaults={
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": False,
    },
)

MIXTRAL = Family(
    name="Mixtral",
    architectures=("MixtralForCausalLM",),
    rules=(
        *ENDS,
        *ATTENTION,
        EXPERTS_NORM,
        layer("mlp.router.weight", "block_sparse_moe.gate.weight", "experts", "hidden"),
        *experts("w1", "w3", "w2"),
    ),
    experts="block_sparse_moe.experts",
    defaults={
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
    },
)

GLM = Family(
    name="GLM-4 (dense)",
    architectures=("GlmForCausalLM",),
    rules=(*ENDS, *ATTENTION, query_key_value("bias", only_if="attention_bias"), *FUSED_MLP),
    arguments=("--rotary-interleaved", "--no-rope-fusion"),
    defaults={
        "num_key_value_heads": 2,
        "head_dim": 128,
        "attention_bias": True,
        "rms_norm_eps": 1.5625e-07,
        "partial_rotary_factor": 0.5,
    },
)

GLM4 = Family(
    name="GLM-4-0414 (dense, a norm after each half of a layer)",
    architectures=("Glm4ForCausalLM",),
    rules=(
        *GLM.rules,
        layer(
            "post_self_attn_layernorm.weight",
            "post_self_attn_layernorm.weight",
            "hidden",
            also_known_as=("self_attention.post_self_attn_layernorm.weight",),
        ),
        layer(
            "post_mlp_layernorm.weight",
            "post_mlp_layernorm.weight",
            "hidden",
            also_known_as=("mlp.post_mlp_layernorm.weight",),
        ),
    ),
    arguments=(*GLM.arguments, "--post-self-attn-layernorm", "--post-mlp-layernorm"),
    defaults=GLM.defaults,
)

FAMILIES = (LLAMA, MISTRAL, QWEN2, QWEN3, QWEN3_MOE, MIXTRAL, GLM, GLM4)


def family_of(architecture: str) -> Family:
    """Return the table for an architecture of config.json. Raises UserError if there is no table for it."""
    for family in FAMILIES:
        if architecture in family.architectures:
            return family
    known = ", ".join(name for family in FAMILIES for name in family.architectures)
    raise UserError(
        f"{architecture} has no table for Megatron (known are {known}): "
        "keep checkpoint.format dcp, or add a table to packages/dagrpo_megatron/src/dagrpo_megatron/families.py."
    )
