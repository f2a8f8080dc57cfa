"""GRPO recipes of Megatron-LM's examples/rl: GPUs, layout and figures, from recipes.yaml.

Arguments that the model itself dictates (sizes, rotary base, epsilon) are read from config.json instead. `recipe_script` writes a
recipe as a command line.
"""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from dagrpo.core.errors import UserError
from dagrpo_megatron.config import ModelConfig

GPUS_PER_NODE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedModel:
    """Model of a recipe, identified by its architecture and sizes. `tokenizer` is a name on the hub."""

    architecture: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    groups: int
    experts: int = 0
    tokenizer: str

    def has_sizes_of(self, config: ModelConfig) -> bool:
        """Return True for this model or one that was trained from it: the vocabulary may differ."""
        sizes = ("layers", "hidden", "ffn", "heads", "groups", "experts")
        same = all(getattr(self, size) == getattr(config.shape, size) for size in sizes)
        return same and self.architecture in config.family.architectures


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Training run. Batches count completions, `length` tokens; `requests` is how many are generated at once.

    `environment` is a file of examples/rl/environment_configs; None: the figures are for any, and the user names one.
    The defaults are the values that most recipes share. `tensor` and `expert` are parallel sizes; the pipeline has one stage.
    """

    name: str
    model: PublishedModel
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


def _read(path: Path) -> Iterator[Recipe]:
    for given in yaml.safe_load(path.read_text(encoding="utf-8"))["recipes"]:
        more = tuple(given.pop("more", ()))
        yield Recipe(model=PublishedModel(**given.pop("model")), more=more, **given)


RECIPES = tuple(_read(Path(__file__).with_name("recipes.yaml")))


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
