"""Megatron-LM arguments that a config.json implies.

With a wrong rotary base or epsilon a checkpoint would load without a warning. Only arguments that the weights dictate are written:
parallelism, batch sizes and the optimizer are the user's.
"""

from dagrpo.core.errors import UserError
from dagrpo_megatron.config import ModelConfig, Shape

FILE = "megatron_arguments.txt"
# What --use-rope-scaling means in Megatron; only the factor is an argument.
_LLAMA3_SCALING = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def megatron_arguments(config: ModelConfig) -> list[str]:
    """Return one argument with its value per line. Raises UserError if config.json needs something that Megatron has no argument for."""
    shape, values = config.shape, config.values
    if values["hidden_act"] not in ("silu", "swish"):
        raise UserError(
            f"config.json asks for the activation {values['hidden_act']}: only silu has a table for Megatron."
        )
    has_bias = shape.attention_bias and any(rule.only_if == "attention_bias" for rule in config.family.rules)
    return [
        *_sizes(shape, values["max_position_embeddings"]),
        "--normalization RMSNorm",
        f"--norm-epsilon {values['rms_norm_eps']:g}",
        *_rotary(config),
        "--swiglu",
        "--disable-bias-linear",
        *config.family.arguments,
        *(["--add-qkv-bias"] if has_bias else []),
        *(["--untie-embeddings-and-output-weights"] if shape.untied else []),
        *_experts(config),
        *_window(config),
        f"--attention-dropout {float(values['attention_dropout'])}",
        "--hidden-dropout 0.0",
        "--ckpt-format torch_dist",
        "--finetune",
    ]


def _sizes(shape: Shape, positions: int) -> list[str]:
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
        f"--max-position-embeddings {positions}",
        f"--vocab-size {shape.vocabulary}",
        "--make-vocab-size-divisible-by 128",
    ]


def _rotary(config: ModelConfig) -> list[str]:
    rope = config.rope
    base, factor = rope["rope_theta"], rope.get("factor")
    if base != int(base):
        raise UserError(f"config.json has the rope_theta {base}, but --rotary-base takes a whole number: correct it.")
    arguments = [
        "--position-embedding-type rope",
        f"--rotary-base {int(base)}",
        f"--rotary-percent {rope['partial_rotary_factor']}",
    ]
    match rope["rope_type"]:
        case "default":
            return arguments
        case "linear" if factor is not None and factor == int(factor):
            return [*arguments, f"--rotary-seq-len-interpolation-factor {int(factor)}"]
        case "llama3" if all(rope.get(key) == value for key, value in _LLAMA3_SCALING.items()):
            return [*arguments, "--use-rope-scaling", f"--rope-scaling-factor {factor}"]
    raise UserError(
        f"config.json scales the rotary embedding as {rope}, for which Megatron has no argument: "
        "remove the scaling, or keep checkpoint.format dcp."
    )


def _experts(config: ModelConfig) -> list[str]:
    if not config.shape.experts:
        return []
    arguments = [
        f"--num-experts {config.shape.experts}",
        f"--moe-router-topk {config.values['num_experts_per_tok']}",
        f"--moe-ffn-hidden-size {config.shape.expert_ffn}",
        "--moe-layer-freq 1",
    ]
    if not config.values["norm_topk_prob"]:  # softmax over all experts, not over the chosen ones
        arguments.append("--moe-router-pre-softmax")
    return arguments


def _window(config: ModelConfig) -> list[str]:
    """Return the window arguments: a position sees `sliding_window` positions, itself included; Megatron counts those before it."""
    window, used = config.values["sliding_window"], config.values["use_sliding_window"]
    if used is True:  # of Qwen, which begins at some layer
        raise UserError("config.json sets use_sliding_window, for which Megatron has no argument: set it to false.")
    return [f"--window-size {window - 1},0"] if window and used is None else []
