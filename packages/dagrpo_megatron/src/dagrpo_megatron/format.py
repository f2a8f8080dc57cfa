"""Checkpoint format `torch_dist` of Megatron-LM.

The weights are in `release`, with Megatron's arguments and a recipe's script beside it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from dagrpo.checkpoints.file_plan import PlannedFile, planned_content
from dagrpo.checkpoints.formats import CheckpointFormat
from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.tensors import Tensors
from dagrpo.core.errors import UserError
from dagrpo_megatron import arguments, recipes
from dagrpo_megatron.config import load_config
from dagrpo_megatron.layout import layout_of
from dagrpo_megatron.recipes import recipe_named, recipe_of_itself, recipes_for
from dagrpo_megatron.weights import TRACKER, MegatronTensors, planned_weights

RECIPE = "recipe"


class Megatron(CheckpointFormat):
    """Checkpoint format that fits any tensor, pipeline and expert parallelism."""

    name = "megatron"
    own_files = (
        "*.distcp",
        "release/*",
        TRACKER,
        arguments.FILE,
        recipes.FILE,
        ".metadata",
        "common.pt",
        "metadata.json",
    )
    options: ClassVar = {RECIPE: "the GRPO run of Megatron-LM's examples/rl to write out as a script"}

    def recognises(self, folder: Path) -> bool:
        return (folder / ".metadata").is_file() or (folder / TRACKER).is_file()

    def open(self, folder: Path, base: Path | None = None) -> MegatronTensors:
        """Open a checkpoint. `base` gives config.json and the rows of the vocabulary that Megatron-LM did not keep."""
        layout = layout_of(load_config(base or folder))
        return MegatronTensors(folder, layout, open_tensors(base) if base else None)

    def planned_files(self, described_by: Path, tensors: Tensors, max_shard_bytes: int) -> list[PlannedFile]:
        """Return the files of a checkpoint. Raises UserError if Megatron cannot hold or train a model with that config.json."""
        config = load_config(described_by)
        lines = "\n".join(arguments.megatron_arguments(config)) + "\n"
        return [
            *planned_weights(tensors, layout_of(config), max_shard_bytes),
            planned_content(arguments.FILE, lines.encode()),
        ]

    def extra_files(self, described_by: Path, options: Mapping[str, str]) -> list[PlannedFile]:
        """Return the script of the named recipe, or else of the one for a model of these sizes."""
        config = load_config(described_by)
        recipe = recipe_named(options[RECIPE]) if RECIPE in options else recipe_of_itself(config)
        if recipe is None:
            return []
        return [planned_content(recipes.FILE, recipes.script(recipe, config).encode())]

    def check(self, *, takes_pictures: bool) -> None:
        """Raise UserError for models that take pictures."""
        if takes_pictures:
            raise UserError("checkpoint.format megatron has no layout for models that take pictures: set it to dcp")

    def facts(self, folder: Path) -> list[tuple[str, str]]:
        text = (folder / arguments.FILE).read_text(encoding="utf-8")
        return [("Megatron arguments", " ".join(text.split())), *_recipes(folder)]


def _recipes(folder: Path) -> list[tuple[str, str]]:
    """Return the script in a folder, or how to get one if several recipes fit the model's sizes."""
    if (folder / recipes.FILE).is_file():
        return [("Megatron-LM's GRPO", f"bash {folder / recipes.FILE}")]
    names = [recipe.name for recipe in recipes_for(load_config(folder))]
    return [("Megatron-LM's GRPO", f"--option recipe={' or '.join(names)}")] if names else []


FORMAT = Megatron()
