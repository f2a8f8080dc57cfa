"""Tiny random models of every family, as transformers saves them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "head_dim": 8,
    "pad_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """A model class of transformers, and what its config has beside SIZES."""

    model: str
    sizes: Mapping[str, Any] = field(default_factory=dict)

    def save(self, folder: Path, dtype: torch.dtype = torch.float32, shard_bytes: int = 1 << 30, **sizes: Any) -> None:
        """Random weights, also for biases and norms, which transformers begins with zeros and ones."""
        kind = getattr(transformers, self.model)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = kind(kind.config_class(**(SIZES | dict(self.sizes) | sizes)))
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter), alpha=0.05)
        model.to(dtype).save_pretrained(folder, max_shard_size=shard_bytes)


FAMILIES = {
    "llama": Tiny(model="LlamaForCausalLM", sizes={"rms_norm_eps": 1e-5, "tie_word_embeddings": True}),
    "llama2": Tiny(model="LlamaForCausalLM", sizes={"num_key_value_heads": 8}),
    "llama3": Tiny(model="LlamaForCausalLM", sizes={"rope_parameters": LLAMA3_ROPE, "max_position_embeddings": 16384}),
    "deepseek_llm": Tiny(
        model="LlamaForCausalLM",
        sizes={"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "mistral": Tiny(model="MistralForCausalLM", sizes={"sliding_window": 6}),
    "qwen2": Tiny(model="Qwen2ForCausalLM", sizes={"tie_word_embeddings": True}),
    "qwen2_untied": Tiny(model="Qwen2ForCausalLM"),
    "qwen3": Tiny(model="Qwen3ForCausalLM", sizes={"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3_moe": Tiny(
        model="Qwen3MoeForCausalLM",
        sizes={"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True},
    ),
    "qwen3_moe_unnormalised": Tiny(
        model="Qwen3MoeForCausalLM",
        sizes={"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": False},
    ),
    "mixtral": Tiny(model="MixtralForCausalLM", sizes={"num_local_experts": 4}),
    "glm": Tiny(model="GlmForCausalLM", sizes={"attention_bias": True}),
    "glm4": Tiny(model="Glm4ForCausalLM", sizes={"attention_bias": True}),
}
