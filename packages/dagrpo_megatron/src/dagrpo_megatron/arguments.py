"""Megatron-LM arguments that a config.json implies.

With a wrong rotary base or epsilon a checkpoint would load without a warning. Only arguments that the weights dictate are written:
parallelism, batch sizes and the optimizer are the user's.
"""

from pathlib import Path

from jinja2 import StrictUndefined, Template

from dagrpo.core.errors import UserError
from dagrpo_megatron.config import ModelConfig

FILE = "megatron_arguments.txt"
# What --use-rope-scaling means in Megatron; only the factor is an argument.
_LLAMA3_SCALING = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def rendered(template: Path, **values: object) -> str:
    """Return a text from a template of Jinja."""
    text = template.read_text(encoding="utf-8")
    made = Template(text, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    return str(made.render(values))


def megatron_arguments(config: ModelConfig) -> list[str]:
    """Return one argument with its value per line. Raises UserError if config.json needs something that Megatron has no argument for."""
    shape, values, rope = config.shape, config.values, config.rope
    if values["hidden_act"] not in ("silu", "swish"):
        raise UserError(
            f"config.json asks for the activation {values['hidden_act']}: only silu has a table for Megatron."
        )
    if rope["rope_theta"] != int(rope["rope_theta"]):
        raise UserError(
            f"config.json has the rope_theta {rope['rope_theta']}, but --rotary-base takes a whole number: correct it."
        )
    if values["use_sliding_window"] is True:  # of Qwen, which begins at some layer
        raise UserError("config.json sets use_sliding_window, for which Megatron has no argument: set it to false.")
    text = rendered(
        Path(__file__).with_name("megatron_arguments.txt.j2"),
        shape=shape,
        values=values,
        rope=rope,
        scaling=_scaling(rope),
        family=config.family,
        has_bias=shape.attention_bias and any(rule.only_if == "attention_bias" for rule in config.family.rules),
    )
    return text.splitlines()


def _scaling(rope: dict[str, object]) -> list[str]:
    """Return the arguments of a rotary embedding for longer contexts. Raises UserError if Megatron has none."""
    factor = rope.get("factor")
    match rope["rope_type"]:
        case "default":
            return []
        case "linear" if isinstance(factor, int | float) and factor == int(factor):
            return [f"--rotary-seq-len-interpolation-factor {int(factor)}"]
        case "llama3" if all(rope.get(key) == value for key, value in _LLAMA3_SCALING.items()):
            return ["--use-rope-scaling", f"--rope-scaling-factor {factor}"]
    raise UserError(
        f"config.json scales the rotary embedding as {rope}, for which Megatron has no argument: "
        "remove the scaling, or keep checkpoint.format dcp."
    )
