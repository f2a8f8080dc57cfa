"""Configs of published models, known without the hub."""

from collections.abc import Mapping
from typing import Any

QWEN2: Mapping[str, Any] = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 151_936,
    "max_position_embeddings": 32_768,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
QWEN3: Mapping[str, Any] = {
    **QWEN2,
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "max_position_embeddings": 40_960,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
QWEN3_MOE: Mapping[str, Any] = {
    **QWEN3,
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}


def _of_width(
    base: Mapping[str, Any], width: int, inner: int, layers: int, heads: int, **others: Any
) -> dict[str, Any]:
    sizes = {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }
    return {**base, **sizes, **others}


_QWEN2_5_7B = _of_width(
    QWEN2, 3584, 18_944, 28, 28, num_key_value_heads=4, tie_word_embeddings=False, vocab_size=152_064
)
_LARGE = {"num_key_value_heads": 8, "tie_word_embeddings": False, "vocab_size": 152_064}
_QWEN2_5_14B = _of_width(QWEN2, 5120, 13_824, 48, 40, **_LARGE)
_QWEN2_5_32B = _of_width(QWEN2, 5120, 27_648, 64, 40, **_LARGE)
_QWEN3_30B_A3B = _of_width(QWEN3_MOE, 2048, 6144, 48, 32)


def _qwen2_5_vl(text: Mapping[str, Any], **vision: int) -> dict[str, Any]:
    return {
        **text,
        "model_type": "qwen2_5_vl",
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "max_position_embeddings": 128_000,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "vision_config": {
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "out_hidden_size": text["hidden_size"],
            "num_heads": 16,
            **vision,
        },
    }


def _qwen3_vl(text: Mapping[str, Any], **vision: Any) -> dict[str, Any]:
    return {
        "model_type": "qwen3_vl",
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "tie_word_embeddings": text["tie_word_embeddings"],
        "text_config": {**text, "model_type": "qwen3_vl_text", "max_position_embeddings": 262_144},
        "vision_config": {"out_hidden_size": text["hidden_size"], "num_heads": 16, "patch_size": 16, **vision},
    }


# What sizes depend on, as the published config.json has it, by repository; the rest is what transformers assumes.
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "Qwen/Qwen2.5-0.5B-Instruct": _of_width(QWEN2, 896, 4864, 24, 14),
    "Qwen/Qwen2.5-1.5B-Instruct": _of_width(QWEN2, 1536, 8960, 28, 12),
    "Qwen/Qwen2.5-3B-Instruct": _of_width(QWEN2, 2048, 11_008, 36, 16),
    "Qwen/Qwen2.5-3B": _of_width(QWEN2, 2048, 11_008, 36, 16),
    "Qwen/Qwen2.5-7B-Instruct": _QWEN2_5_7B,
    "Qwen/Qwen2-7B-Instruct": _QWEN2_5_7B,
    "Qwen/Qwen2.5-Math-7B": {**_QWEN2_5_7B, "max_position_embeddings": 4096},
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": {**_QWEN2_5_7B, "max_position_embeddings": 131_072},
    "Qwen/Qwen2.5-14B-Instruct": _QWEN2_5_14B,
    "Qwen/Qwen2.5-Coder-14B-Instruct": _QWEN2_5_14B,
    "Qwen/Qwen2.5-32B": {**_QWEN2_5_32B, "max_position_embeddings": 131_072},
    "Qwen/Qwen2.5-32B-Instruct": _QWEN2_5_32B,
    "Qwen/Qwen2.5-72B-Instruct": _of_width(QWEN2, 8192, 29_568, 80, 64, **_LARGE),
    "Qwen/Qwen3-0.6B": _of_width(QWEN3, 1024, 3072, 28, 16),
    "Qwen/Qwen3-1.7B": _of_width(QWEN3, 2048, 6144, 28, 16),
    "Qwen/Qwen3-4B": _of_width(QWEN3, 2560, 9728, 36, 32),
    "Qwen/Qwen3-8B": _of_width(QWEN3, 4096, 12_288, 36, 32, tie_word_embeddings=False),
    "Qwen/Qwen3-32B": _of_width(QWEN3, 5120, 25_600, 64, 64, tie_word_embeddings=False),
    "Qwen/Qwen3-30B-A3B": _QWEN3_30B_A3B,
    "Qwen/Qwen3-30B-A3B-Base": {**_QWEN3_30B_A3B, "max_position_embeddings": 32_768},
    "Qwen/Qwen3-30B-A3B-Instruct-2507": {**_QWEN3_30B_A3B, "max_position_embeddings": 262_144},
    "Qwen/Qwen3-235B-A22B": _of_width(QWEN3_MOE, 4096, 12_288, 94, 64, moe_intermediate_size=1536),
    "meta-llama/Llama-3.1-8B-Instruct": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "Qwen/Qwen2.5-VL-3B-Instruct": _qwen2_5_vl(_of_width(QWEN2, 2048, 11_008, 36, 16)),
    "Qwen/Qwen2.5-VL-7B-Instruct": _qwen2_5_vl(_QWEN2_5_7B),
    "Qwen/Qwen3-VL-2B-Instruct": _qwen3_vl(
        _of_width(QWEN3, 2048, 6144, 28, 16),
        depth=24,
        hidden_size=1024,
        intermediate_size=4096,
        deepstack_visual_indexes=[5, 11, 17],
    ),
    "Qwen/Qwen3-VL-8B-Instruct": _qwen3_vl(
        _of_width(QWEN3, 4096, 12_288, 36, 32, tie_word_embeddings=False),
        depth=27,
        hidden_size=1152,
        intermediate_size=4304,
        deepstack_visual_indexes=[8, 16, 24],
    ),
}
