"""The checkpoint commands of `dagrpo`: convert, inspect, diff and verify. Their work is elsewhere."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dagrpo.errors import UserError

if TYPE_CHECKING:
    from dagrpo.checkpoints.megatron.recipes import Recipe

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="a checkpoint in any format")]


class Target(StrEnum):
    """What `--to` takes."""

    hf = "hf"
    dcp = "dcp"
    megatron = "megatron"


_FORMATS: dict[Target, Literal["huggingface", "dcp", "megatron"]] = {
    Target.hf: "huggingface",
    Target.dcp: "dcp",
    Target.megatron: "megatron",
}


def convert(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="a checkpoint in any format")],
    destination: Annotated[Path, typer.Argument(metavar="DST", help="the folder to write; an old one is replaced")],
    to: Annotated[Target, typer.Option(help="the format to write")],
    base: Annotated[
        Path | None, typer.Option(help="the model that training began with: config, tokenizer, rows")
    ] = None,
    adapter: Annotated[
        Path | None, typer.Option(help="a LoRA adapter in PEFT's format, merged into the weights")
    ] = None,
    keep_adapter: Annotated[bool, typer.Option(help="carry the adapter along in DST/adapter instead")] = False,
    recipe: Annotated[
        str | None, typer.Option(help="the GRPO run of Megatron-LM's examples to write out for --to megatron")
    ] = None,
    max_shard_bytes: Annotated[
        int, typer.Option(min=1 << 20, help="most bytes of weights in one file")
    ] = 1_000_000_000,
) -> None:
    """Write a checkpoint in another format: the same names, types and bytes of all tensors, or an error."""
    from dagrpo import console
    from dagrpo.checkpoints import facts, lora
    from dagrpo.checkpoints.convert import write_as
    from dagrpo.checkpoints.folder import require_replaceable
    from dagrpo.checkpoints.megatron import recipe_script
    from dagrpo.checkpoints.source import open_source

    require_replaceable(destination, [folder for folder in (source, base, adapter) if folder is not None])
    opened = open_source(source, base)
    if adapter is not None:
        opened = lora.with_adapter_beside(opened, adapter) if keep_adapter else lora.merged(opened, adapter)
    elif keep_adapter:
        raise UserError("--keep-adapter is given without --adapter: name the adapter's folder.")
    with recipe_script.script_beside(opened, _recipe(to, opened.home, recipe)) as whole:
        manifest = write_as(_FORMATS[to], whole, destination, max_shard_bytes)
    console.summary(f"convert: {source} to {manifest.format}", facts.lines(destination, manifest))
    for line in recipe_script.shown(destination):
        typer.echo(line)


def _recipe(to: Target, home: Path, name: str | None) -> "Recipe | None":
    """The recipe that was named, or else the one for the model's sizes."""
    from dagrpo.checkpoints.megatron.config import load_config
    from dagrpo.checkpoints.megatron.recipes import recipe_named, recipe_of_itself

    if to is not Target.megatron:
        if name is not None:
            raise UserError("--recipe is given without --to megatron: it is a command line of Megatron-LM.")
        return None
    return recipe_named(name) if name is not None else recipe_of_itself(load_config(home))


def inspect(folder: Folder) -> None:
    """Show the format, size and digest of a checkpoint, and name, type and shape of every tensor."""
    from dagrpo.checkpoints.compare import described

    for line in described(folder):
        typer.echo(line)


def diff(first: Folder, second: Folder) -> None:
    """Compare two checkpoints tensor by tensor, whatever their formats; exit code 1 when they differ."""
    from dagrpo.checkpoints.compare import compare

    comparison = compare(first, second)
    for line in comparison.lines():
        typer.echo(line)
    if comparison.differences:
        raise typer.Exit(1)


def verify(folder: Folder) -> None:
    """Check every file of a checkpoint, and the digest of its tensors, against its manifest."""
    from dagrpo.checkpoints.compare import verify_weights

    manifest = verify_weights(folder)
    typer.echo(
        f"{folder} is whole: {len(manifest.files)} files, {manifest.tensors.count} tensors, "
        f"digest {manifest.tensors.digest}."
    )


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    for command in (convert, inspect, diff, verify):
        app.command()(command)
