"""GRPO recipes of Megatron-LM's examples/rl: GPUs, layout and figures.

The figures are those of that folder's README.md and model_configs. Arguments that the model itself dictates (sizes, rotary base,
epsilon) are read from config.json instead. `recipe_script` writes a recipe as a command line.
"""

import difflib
from dataclasses import dataclass

from dagrpo.core.errors import UserError
from dagrpo_megatron.config import ModelConfig
from dagrpo_megatron.published_models import (
    LLAMA31_8B,
    QWEN3_4B,
    QWEN3_8B,
    QWEN3_30B_A3B,
    QWEN3_32B,
    QWEN25_3B,
    QWEN25_32B,
    QWEN25_MATH_7B,
    R1_DISTILL_QWEN_7B,
    PublishedModel,
)

GPUS_PER_NODE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Training run. Batches count completions, `length` tokens; `requests` is how many are generated at once.

    `environment` is a file of examples/rl/environment_configs; None: the figures are for any, and the user names one.
    The defaults are the values that most recipes share. `tensor` and `expert` are parallel sizes; the pipeline has one stage.
    """

    name: str
    model: PublishedModel
    nodes: int
    tensor: int
    expert: int = 1
    environment: str | None = None
    prompts: int = 64
    group_size: int = 16
    batch: int = 1024
    micro_batch: int = 1
    length: int
    requests: int = 64
    clamp_lower: float = 0.2
    clamp_upper: float = 0.2
    kl_beta: float = 0.0
    learning_rate: float = 1e-6
    minimum_learning_rate: float = 0.0
    warmup_samples: int = 0
    weight_decay: float = 0.0
    adam_beta2: float = 0.95
    save_interval: int = 16
    more: tuple[str, ...] = ()


_RECOMPUTE = ("--recompute-granularity selective", "--recompute-activations")
_PACKING = ("--rl-use-sequence-packing", "--rl-sequence-packing-algo fifo")
_BALANCED_EXPERTS = (
    "--moe-token-dispatcher-type alltoall",
    "--moe-router-load-balancing-type aux_loss",
    "--moe-aux-loss-coeff 0.001",
)
_DAPO = "dapo.yaml"


def _of_qwen3(
    name: str,
    model: PublishedModel,
    length: int,
    *,
    tensor: int = 1,
    expert: int = 1,
    save: int = 16,
    more: tuple[str, ...],
) -> Recipe:
    """Return a recipe for Qwen3, with the values that its four runs share."""
    return Recipe(
        name=name,
        model=model,
        nodes=1,
        tensor=tensor,
        expert=expert,
        batch=256,
        length=length,
        requests=32,
        minimum_learning_rate=1e-7,
        weight_decay=0.01,
        adam_beta2=0.999,
        save_interval=save,
        more=more,
    )


# Where several are for one model, the first is the one that a conversion writes without being asked.
RECIPES = (
    Recipe(
        name="qwen_2p5_32b_dapo",
        model=QWEN25_32B,
        nodes=8,
        tensor=8,
        environment=_DAPO,
        length=12_000,
        requests=32,
        clamp_upper=0.28,
        more=_RECOMPUTE,
    ),
    Recipe(
        name="qwen_2p5_32b",
        model=QWEN25_32B,
        nodes=8,
        tensor=8,
        prompts=32,
        batch=512,
        length=12_000,
        more=_RECOMPUTE,
    ),
    Recipe(
        name="qwen_2p5_3b_dapo",
        model=QWEN25_3B,
        nodes=2,
        tensor=2,
        environment=_DAPO,
        length=8192,
        more=_PACKING,
    ),
    Recipe(
        name="qwen_2p5_3b",
        model=QWEN25_3B,
        nodes=2,
        tensor=2,
        prompts=32,
        batch=512,
        length=8192,
        more=_PACKING,
    ),
    Recipe(
        name="qwen_2p5_math_7b_dapo",
        model=QWEN25_MATH_7B,
        nodes=2,
        tensor=1,
        environment=_DAPO,
        micro_batch=2,
        length=4096,
    ),
    Recipe(
        name="qwen_2p5_math_7b",
        model=QWEN25_MATH_7B,
        nodes=2,
        tensor=1,
        prompts=32,
        batch=512,
        micro_batch=2,
        length=4096,
    ),
    Recipe(
        name="qwen_2p5_distill_7b",
        model=R1_DISTILL_QWEN_7B,
        nodes=2,
        tensor=2,
        prompts=128,
        group_size=8,
        length=8192,
    ),
    _of_qwen3("qwen3_4b", QWEN3_4B, 32_768, more=(*_RECOMPUTE, "--recompute-modules core_attn")),
    _of_qwen3("qwen3_8b", QWEN3_8B, 32_768, more=(*_RECOMPUTE, "--recompute-modules core_attn")),
    _of_qwen3("qwen3_32b", QWEN3_32B, 8192, tensor=4, more=(*_RECOMPUTE, "--recompute-modules core_attn")),
    _of_qwen3("qwen3_30b_a3b_moe", QWEN3_30B_A3B, 8192, tensor=4, expert=2, save=20, more=_BALANCED_EXPERTS),
    Recipe(
        name="llama3p1_8b_instruct_dapo",
        model=LLAMA31_8B,
        nodes=4,
        tensor=8,
        environment=_DAPO,
        length=8192,
        learning_rate=3e-7,
        weight_decay=0.1,
        more=_PACKING,
    ),
    Recipe(
        name="llama3p1_8b_instruct_openmath",
        model=LLAMA31_8B,
        nodes=4,
        tensor=8,
        environment="openmathinstructv2.yaml",
        group_size=32,
        batch=512,
        length=4096,
        kl_beta=0.01,
        learning_rate=3e-7,
        warmup_samples=5120,
        weight_decay=0.1,
        more=_PACKING,
    ),
)


def recipe_named(name: str) -> Recipe:
    """Return the recipe of that name. Raises UserError for an unknown name."""
    by_name = {recipe.name: recipe for recipe in RECIPES}
    if name not in by_name:
        near = difflib.get_close_matches(name, by_name, n=3, cutoff=0.5) or list(by_name)
        raise UserError(f"There is no recipe {name!r}: choose {' or '.join(near)}.")
    return by_name[name]


def recipes_for(config: ModelConfig) -> list[Recipe]:
    """Return the recipes for a model of these sizes."""
    return [recipe for recipe in RECIPES if recipe.model.has_sizes_of(config)]


def recipe_of_itself(config: ModelConfig) -> Recipe | None:
    """Return the recipe that needs no choice: the first for these sizes, unless two published models have them."""
    fitting = recipes_for(config)
    return fitting[0] if len({recipe.model for recipe in fitting}) == 1 else None


def require_trainable(recipe: Recipe, config: ModelConfig) -> None:
    """Refuse a recipe whose layout cannot hold the model. Sizes that differ from the recipe's are the user's choice."""
    shape, positions = config.shape, config.values["max_position_embeddings"]
    counts = {"attention heads": shape.heads, "query groups": shape.groups, "columns of the MLP": shape.ffn}
    for what, count in counts.items():
        _require_divided(recipe, "tensor", recipe.tensor, what, count)
    if recipe.expert > 1 and not shape.experts:
        raise UserError(f"the recipe {recipe.name} spreads experts, but config.json has none: choose another recipe.")
    _require_divided(recipe, "expert", recipe.expert, "experts", shape.experts)
    if recipe.length > positions:
        raise UserError(
            f"the recipe {recipe.name} trains on {recipe.length} tokens, but config.json has {positions} "
            "max_position_embeddings: choose a recipe of shorter sequences."
        )


def _require_divided(recipe: Recipe, kind: str, ranks: int, what: str, count: int) -> None:
    if count % ranks:
        raise UserError(
            f"the recipe {recipe.name} has {ranks} {kind}-parallel ranks, which do not divide the {count} {what} of "
            "config.json: choose another recipe."
        )
