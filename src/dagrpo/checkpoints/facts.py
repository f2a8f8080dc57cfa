"""What a stage tells about the checkpoint it made: figures for the run, lines for the summary on the terminal."""

from pathlib import Path

from dagrpo.checkpoints.manifest import Manifest
from dagrpo.checkpoints.megatron import recipe_script
from dagrpo.checkpoints.megatron.arguments import FILE
from dagrpo.checkpoints.megatron.config import load_config
from dagrpo.checkpoints.megatron.recipes import recipes_for
from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.tensors import parameter_count


def figures(folder: Path, manifest: Manifest) -> dict[str, float]:
    """Size of a checkpoint: parameters (tied weights once) and bytes of all its files."""
    return {"parameters": parameter_count(open_tensors(folder)), "bytes": manifest.bytes}


def lines(folder: Path, manifest: Manifest) -> list[tuple[str, str]]:
    """The same for a person, with format, types and the beginning of the tensor digest."""
    size = figures(folder, manifest)
    shown = [
        ("folder", str(folder)),
        ("format", manifest.format),
        ("parameters", f"{size['parameters']:,}"),
        ("size", f"{size['bytes'] / 1e6:,.1f} MB"),
        ("types", ", ".join(f"{number} {dtype}" for dtype, number in manifest.tensors.dtypes.items())),
        ("tensor digest", manifest.tensors.digest[:16]),
    ]
    if manifest.format == "megatron":
        shown.append(("Megatron arguments", " ".join((folder / FILE).read_text(encoding="utf-8").split())))
        shown += _recipes(folder)
    return shown


def _recipes(folder: Path) -> list[tuple[str, str]]:
    """The script that lies in a folder, or how to get one where the model's sizes leave a choice."""
    if (folder / recipe_script.FILE).is_file():
        return [("Megatron-LM's GRPO", f"bash {folder / recipe_script.FILE}")]
    fitting = recipes_for(load_config(folder))
    return [("Megatron-LM's GRPO", f"--recipe {' or '.join(recipe.name for recipe in fitting)}")] if fitting else []
