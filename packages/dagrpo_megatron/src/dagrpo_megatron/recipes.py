"""GRPO recipes of Megatron-LM's examples/rl: GPUs, layout and figures, from recipes.yaml.

Arguments that the model itself dictates (sizes, rotary base, epsilon) are read from config.json instead. `script` writes a recipe
as the command line of train_rl.py, to lie beside the checkpoint: the names and values of its arguments are those of Megatron-LM
core_v0.19.2. It reads only its own folder and the variables that it names; arguments after its own name win over those inside.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from dagrpo.core.errors import UserError, nearest
from dagrpo.models.published import CONFIGS
from dagrpo_megatron.arguments import megatron_arguments, rendered
from dagrpo_megatron.config import ModelConfig

GPUS_PER_NODE = 8
FILE = "train_with_megatron.sh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Training run. Batches count completions, `length` tokens; `requests` is how many are generated at once.

    `model` and `tokenizer` are names on the hub; `environment` is a file of examples/rl/environment_configs, None: the figures are
    for any, and the user names one. The defaults are the values that most recipes share. `tensor` and `expert` are parallel sizes;
    the pipeline has one stage.
    """

    name: str
    model: str
    tokenizer: str
    nodes: int
    tensor: int = 1
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

    def is_for(self, config: ModelConfig) -> bool:
        """Return True for the recipe's model or one that was trained from it: the vocabulary may differ."""
        published, shape = CONFIGS[self.model], config.shape
        own = (shape.layers, shape.hidden, shape.ffn, shape.heads, shape.groups, shape.experts)
        keys = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
        sizes = (*(published[key] for key in keys), published.get("num_experts", 0))
        return own == sizes and published["architectures"][0] in config.family.architectures


def _read(path: Path) -> Iterator[Recipe]:
    for given in yaml.safe_load(path.read_text(encoding="utf-8"))["recipes"]:
        yield Recipe(**given | {"more": tuple(given.get("more", ()))})


RECIPES = tuple(_read(Path(__file__).with_name("recipes.yaml")))


def recipe_named(name: str) -> Recipe:
    """Return the recipe of that name. Raises UserError for an unknown name."""
    by_name = {recipe.name: recipe for recipe in RECIPES}
    if name not in by_name:
        raise UserError(f"There is no recipe {name!r}: {nearest(name, by_name)}.")
    return by_name[name]


def recipes_for(config: ModelConfig) -> list[Recipe]:
    """Return the recipes for a model of these sizes."""
    return [recipe for recipe in RECIPES if recipe.is_for(config)]


def recipe_of_itself(config: ModelConfig) -> Recipe | None:
    """Return the recipe that needs no choice: the first for these sizes, unless two published models have them."""
    fitting = recipes_for(config)
    return fitting[0] if len({recipe.model for recipe in fitting}) == 1 else None


def require_trainable(recipe: Recipe, config: ModelConfig) -> None:
    """Refuse a recipe whose layout cannot hold the model. Sizes that differ from the recipe's are the user's choice."""
    shape, positions = config.shape, config.values["max_position_embeddings"]
    counts = {"attention heads": shape.heads, "query groups": shape.groups, "columns of the MLP": shape.ffn}
    if recipe.expert > 1 and not shape.experts:
        raise UserError(f"the recipe {recipe.name} spreads experts, but config.json has none: choose another recipe.")
    split = [("tensor", recipe.tensor, what, count) for what, count in counts.items()]
    for kind, ranks, what, count in (*split, ("expert", recipe.expert, "experts", shape.experts)):
        if count % ranks:
            raise UserError(
                f"the recipe {recipe.name} has {ranks} {kind}-parallel ranks, which do not divide the {count} {what} of "
                "config.json: choose another recipe."
            )
    if recipe.length > positions:
        raise UserError(
            f"the recipe {recipe.name} trains on {recipe.length} tokens, but config.json has {positions} "
            "max_position_embeddings: choose a recipe of shorter sequences."
        )


def script(recipe: Recipe, config: ModelConfig) -> str:
    """Return the script for a model. Raises UserError if the recipe's layout cannot hold it, or Megatron-LM cannot train it."""
    require_trainable(recipe, config)
    return rendered(
        Path(__file__).with_name("train_with_megatron.sh.j2"),
        recipe=recipe,
        gpus=GPUS_PER_NODE,
        tokenizer=recipe.tokenizer if recipe.is_for(config) else "$CHECKPOINT",
        # --pretrained-checkpoint implies --finetune for the first start; given always, it would start afresh at every restart.
        of_model=[argument for argument in megatron_arguments(config) if argument != "--finetune"],
    )
