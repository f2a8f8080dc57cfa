"""Tables of model families, one for each.

A tensor that no rule names is an error, so a table is either right or refuses.
"""

from dagrpo.core.errors import UserError
from dagrpo_megatron.rules import Family, experts, gate_and_up, layer, query_key_value, whole

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
