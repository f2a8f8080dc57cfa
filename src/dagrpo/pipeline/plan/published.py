"""Configs of published models, for a plan without the hub."""

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


# What sizes depend on, as the published config.json has it, by repository; the rest is what transformers assumes.
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "Qwen/Qwen2.5-0.5B-Instruct": _of_width(QWEN2, 896, 4864, 24, 14),
    "Qwen/Qwen2.5-1.5B-Instruct": _of_width(QWEN2, 1536, 8960, 28, 12),
    "Qwen/Qwen2.5-3B-Instruct": _of_width(QWEN2, 2048, 11_008, 36, 16),
    "Qwen/Qwen2.5-7B-Instruct": _of_width(
        QWEN2, 3584, 18_944, 28, 28, num_key_value_heads=4, tie_word_embeddings=False, vocab_size=152_064
    ),
    "Qwen/Qwen3-0.6B": _of_width(QWEN3, 1024, 3072, 28, 16),
    "Qwen/Qwen3-1.7B": _of_width(QWEN3, 2048, 6144, 28, 16),
    "Qwen/Qwen3-4B": _of_width(QWEN3, 2560, 9728, 36, 32),
    "Qwen/Qwen3-8B": _of_width(QWEN3, 4096, 12_288, 36, 32, tie_word_embeddings=False),
    "Qwen/Qwen2.5-VL-3B-Instruct": _of_width(QWEN2, 2048, 11_008, 36, 16)
    | {
        "model_type": "qwen2_5_vl",
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "max_position_embeddings": 128_000,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "vision_config": {
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "out_hidden_size": 2048,
            "num_heads": 16,
        },
    },
    "Qwen/Qwen3-VL-2B-Instruct": {
        "model_type": "qwen3_vl",
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "tie_word_embeddings": True,
        "text_config": _of_width(
            QWEN3, 2048, 6144, 28, 16, model_type="qwen3_vl_text", max_position_embeddings=262_144
        ),
        "vision_config": {
            "depth": 24,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "out_hidden_size": 2048,
            "num_heads": 16,
            "patch_size": 16,
            "deepstack_visual_indexes": [5, 11, 17],
        },
    },
}
