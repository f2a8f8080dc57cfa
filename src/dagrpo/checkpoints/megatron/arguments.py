"""The Megatron-LM arguments that a config.json implies: a wrong rotary base or epsilon would load without a word.

Only what the weights dictate. Parallelism, batch sizes and the optimizer are the user's.
"""

from pathlib import Path
from typing import Any

from dagrpo.checkpoints.megatron.families import family_of
from dagrpo.checkpoints.megatron.shape import Shape, architecture, load_config, shape_of

FILE = "megatron_arguments.txt"
# What --use-rope-scaling means in Megatron; only the factor is an argument.
_LLAMA3_SCALING = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def megatron_arguments(folder: Path) -> list[str]:
    """One argument with its value per line. ValueError: config.json asks for what Megatron has no argument for."""
    config = load_config(folder)
    shape = shape_of(config)
    return [
        *_sizes(shape, config),
        "--normalization RMSNorm",
        f"--norm-epsilon {config.rms_norm_eps:g}",
        *_rotary(config, folder),
        "--swiglu",
        "--disable-bias-linear",
        *_of_family(folder, shape),
        *(["--untie-embeddings-and-output-weights"] if shape.untied else []),
        *_experts(shape, config),
        *_window(config),
        f"--attention-dropout {float(getattr(config, 'attention_dropout', 0.0) or 0.0)}",
        "--hidden-dropout 0.0",
        "--ckpt-format torch_dist",
        "--finetune",
    ]


def _sizes(shape: Shape, config: Any) -> list[str]:
    arguments = [
        f"--num-layers {shape.layers}",
        f"--hidden-size {shape.hidden}",
        f"--ffn-hidden-size {shape.ffn}",
        f"--num-attention-heads {shape.heads}",
        f"--kv-channels {shape.head}",
    ]
    if shape.groups != shape.heads:
        arguments += ["--group-query-attention", f"--num-query-groups {shape.groups}"]
    return [
        *arguments,
        f"--max-position-embeddings {config.max_position_embeddings}",
        f"--vocab-size {shape.vocabulary}",
        "--make-vocab-size-divisible-by 128",
    ]


def _rotary(config: Any, folder: Path) -> list[str]:
    rope = config.rope_parameters
    base = rope["rope_theta"]
    if base != int(base):
        raise ValueError(
            f"{folder}: rope_theta is {base}, but --rotary-base takes a whole number: it cannot be trained."
        )
    percent = rope.get("partial_rotary_factor", 1.0)
    arguments = ["--position-embedding-type rope", f"--rotary-base {int(base)}", f"--rotary-percent {percent}"]
    match rope.get("rope_type", "default"):
        case "default":
            return arguments
        case "linear" if rope["factor"] == int(rope["factor"]):
            return [*arguments, f"--rotary-seq-len-interpolation-factor {int(rope['factor'])}"]
        case "llama3" if all(rope.get(key) == value for key, value in _LLAMA3_SCALING.items()):
            return [*arguments, "--use-rope-scaling", f"--rope-scaling-factor {rope['factor']}"]
    raise ValueError(
        f"{folder} scales its rotary embedding as {rope}, for which Megatron has no argument: "
        "remove the scaling from config.json, or keep checkpoint.format dcp."
    )


def _of_family(folder: Path, shape: Shape) -> list[str]:
    family = family_of(architecture(folder))
    if any(rule.only_if == "attention_bias" for rule in family.rules) and shape.attention_bias:
        return [*family.arguments, "--add-qkv-bias"]
    return list(family.arguments)


def _experts(shape: Shape, config: Any) -> list[str]:
    if not shape.experts:
        return []
    arguments = [
        f"--num-experts {shape.experts}",
        f"--moe-router-topk {config.num_experts_per_tok}",
        f"--moe-ffn-hidden-size {shape.expert_ffn}",
        "--moe-layer-freq 1",
    ]
    if not getattr(config, "norm_topk_prob", True):  # softmax over all experts, not over the chosen ones
        arguments.append("--moe-router-pre-softmax")
    return arguments


def _window(config: Any) -> list[str]:
    """A position sees `sliding_window` positions, itself included; Megatron counts those before it."""
    window = getattr(config, "sliding_window", None)
    if not window or getattr(config, "use_sliding_window", True) is False:
        return []
    return [f"--window-size {window - 1},0"]
