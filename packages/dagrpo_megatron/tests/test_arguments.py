"""The arguments that a config.json implies, and the defaults of what it leaves out."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from packages.dagrpo_megatron.tests.families import LLAMA3_ROPE
from packages.dagrpo_megatron.tests.options import parsed
from transformers import AutoConfig

from dagrpo_megatron.arguments import megatron_arguments
from dagrpo_megatron.config import ModelConfig, load_config
from dagrpo_megatron.families import FAMILIES, Family

SIZES = {
    "num_hidden_layers": 3,
    "vocab_size": 1000,
    "hidden_size": 512,
    "num_attention_heads": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
}
# As published; https://huggingface.co/Qwen/Qwen2.5-32B/blob/main/config.json
QWEN25_32B = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "max_position_embeddings": 131072,
    "max_window_layers": 64,
    "model_type": "qwen2",
    "num_attention_heads": 40,
    "num_hidden_layers": 64,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
}


def config_in(folder: Path, **config: Any) -> ModelConfig:
    """Return what is read from a config.json of these values."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return load_config(folder)


def _arguments(tmp_path: Path, **config: Any) -> list[str]:
    return megatron_arguments(config_in(tmp_path, **config))


@pytest.mark.parametrize("architecture", [name for family in FAMILIES for name in family.architectures])
def test_what_a_config_leaves_out_is_what_transformers_takes(architecture: str, tmp_path: Path) -> None:
    ours = config_in(
        tmp_path,
        architectures=[architecture],
        model_type=getattr(transformers, architecture).config_class.model_type,
        **SIZES,
    )
    theirs = AutoConfig.from_pretrained(tmp_path)
    heads = getattr(theirs, "num_key_value_heads", None) or theirs.num_attention_heads
    assert ours.shape.groups == heads
    assert ours.shape.head == (getattr(theirs, "head_dim", None) or 8)
    assert ours.shape.tied == theirs.tie_word_embeddings
    assert ours.shape.attention_bias == getattr(theirs, "attention_bias", False)
    assert ours.shape.experts == getattr(theirs, "num_local_experts", 0)
    assert ours.shape.expert_ffn == getattr(theirs, "moe_intermediate_size", 96)
    expected_rope = {"partial_rotary_factor": 1.0} | dict(theirs.rope_parameters)
    assert ours.rope == expected_rope
    for key in ("rms_norm_eps", "attention_dropout", "sliding_window", "norm_topk_prob", "num_experts_per_tok"):
        assert ours.values.get(key) == getattr(theirs, key, ours.values.get(key)), key


def test_the_arguments_of_qwen25_32b(tmp_path: Path) -> None:
    assert " ".join(_arguments(tmp_path, **QWEN25_32B)) == (
        "--num-layers 64 --hidden-size 5120 --ffn-hidden-size 27648 --num-attention-heads 40 --kv-channels 128 "
        "--group-query-attention --num-query-groups 8 --max-position-embeddings 131072 --vocab-size 152064 "
        "--make-vocab-size-divisible-by 128 --normalization RMSNorm --norm-epsilon 1e-05 --position-embedding-type rope "
        "--rotary-base 1000000 --rotary-percent 1.0 --swiglu --disable-bias-linear --add-qkv-bias "
        "--untie-embeddings-and-output-weights --attention-dropout 0.0 --hidden-dropout 0.0 --ckpt-format torch_dist --finetune"
    )


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_megatron_knows_every_argument_of_a_family(family: Family, tmp_path: Path) -> None:
    given = " ".join(_arguments(tmp_path, architectures=[family.architectures[0]], **SIZES)).split()
    # Of patched versions of Megatron-LM only, as is the layer that has these norms.
    patched = [name for name in given if name in ("--post-self-attn-layernorm", "--post-mlp-layernorm")]
    assert bool(patched) is ("Glm4ForCausalLM" in family.architectures)
    assert parsed([name for name in given if name not in patched])["num_layers"] == 3


@pytest.mark.parametrize(
    ("scaling", "argument"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "--rotary-seq-len-interpolation-factor 4"),
        ({"rope_scaling": LLAMA3_ROPE}, "--rope-scaling-factor 8.0"),
        ({"rope_scaling": None, "rope_theta": 500000.0}, "--rotary-base 500000"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 4096}, "--window-size 4095,0"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}, "--rotary-base 500000"),
    ],
    ids=["linear", "llama3", "plain, transformers 4", "a window", "plain, transformers 5"],
)
def test_a_rotary_embedding_in_either_spelling_and_a_window_become_arguments(
    scaling: dict[str, Any], argument: str, tmp_path: Path
) -> None:
    arguments = _arguments(tmp_path, **{"architectures": ["LlamaForCausalLM"], **SIZES, **scaling})
    assert argument in arguments
    assert any("window" in line for line in arguments) is ("sliding_window" in scaling)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "for which Megatron has no argument"),
        ({"rope_scaling": {"type": "linear", "factor": 2.5}}, "for which Megatron has no argument"),
        ({"rope_theta": 10000.5}, "takes a whole number"),
        ({"hidden_act": "gelu"}, "the activation gelu"),
        ({"use_sliding_window": True, "sliding_window": 4}, "sets use_sliding_window"),
        ({"hidden_size": None}, r"config\.json gives no hidden_size"),
        ({"num_experts": 4}, "gives 4 experts to a Qwen2 and Qwen2.5 model"),
    ],
)
def test_what_megatron_cannot_express_is_an_error(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        _arguments(tmp_path, architectures=["Qwen2ForCausalLM"], **(SIZES | change))
